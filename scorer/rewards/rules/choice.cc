#include "scorer/rewards/rules/choice.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "core/answer_extraction/boxed.h"
#include "core/tokenizer/unicode.h"
#include "scorer/rewards/extract.h"
#include "scorer/rewards/rules/plain_text.h"

namespace quartet {
namespace {

using Words = std::span<const std::string_view>;

// What may stand between a letter and what is said of it, beside spaces.
constexpr std::string_view kAround = " ()[]*\"'_$`{}";

bool IsInWord(char32_t c) { return c != '_' && IsWordChar(c) && !IsIdeograph(c); }
bool IsDecimal(char32_t c) { return c >= '0' && c <= '9'; }

// The character that ends before `at`, or begins at it; 0: there is none.
char32_t CharBefore(std::string_view text, size_t at) {
  if (at == 0) return 0;
  size_t begin = at - 1;
  while (begin > 0 && at - begin < 4 && (text[begin] & 0xc0) == 0x80) --begin;
  return CharOf(text, begin).first;
}
char32_t CharBehind(std::string_view text, size_t at) { return at < text.size() ? CharOf(text, at).first : 0; }

// Whether the choice at `at` is no part of a word, a number or a name such as x_A.
bool StandsAlone(std::string_view text, size_t at, std::string_view choices) {
  if (choices.find(text[at]) == std::string_view::npos) return false;
  const char32_t before = CharBefore(text, at), behind = CharBehind(text, at + 1);
  if (IsInWord(before) || IsInWord(behind) || before == '\\') return false;
  const auto joins = [](char32_t c) { return c == '\'' || c == '_' || c == '-'; };
  if (joins(before) && IsInWord(CharBefore(text, at - 1))) return false;
  if (joins(behind) && IsInWord(CharBehind(text, at + 2))) return false;
  if (!IsDecimal(static_cast<unsigned char>(text[at]))) return true;
  if (behind == '%' || before == '-') return false;
  const auto parts = [](char32_t c) { return c == '.' || c == ',' || c == '/' || c == ':'; };
  return !(parts(before) && IsDecimal(CharBefore(text, at - 1))) &&
         !(parts(behind) && IsDecimal(CharBehind(text, at + 2)));
}

// Whether the letter at `at`, which stands alone, is an article or a pronoun: "A total of", "I think".
bool IsWordAlone(std::string_view text, size_t at) {
  if ((text[at] != 'A' && text[at] != 'I') || at + 2 >= text.size() || text[at + 1] != ' ' ||
      !absl::ascii_islower(static_cast<unsigned char>(text[at + 2]))) {
    return false;
  }
  const std::string_view next = text.substr(at + 2);
  for (const std::string_view word : {"is", "are", "and", "or", "as", "but", "because", "since", "too", "can", "cannot",
                                      "does", "fits", "must", "was", "nor", "seems"}) {
    if (next.substr(0, word.size()) == word && !IsInWord(CharBehind(next, word.size()))) return false;
  }
  return true;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  absl::AsciiStrToLower(&lower);
  return lower;
}

std::string_view WithoutFront(std::string_view text, std::string_view any) {
  return text.substr(std::min(text.size(), text.find_first_not_of(any)));
}
std::string_view WithoutBack(std::string_view text, std::string_view any) {
  return text.substr(0, text.find_last_not_of(any) + 1);
}

// What is before `at`, without what may stand between: some bytes.
std::string_view Before(std::string_view text, size_t at) {
  constexpr size_t kMostBytes = 64;
  const size_t begin = at - std::min(at, kMostBytes);
  return WithoutBack(text.substr(begin, at - begin), kAround);
}

// Takes one of `words` off the end, or the beginning, where no other letter joins it; ideographs need nothing between.
bool TakeBack(std::string_view* text, Words words) {
  for (const std::string_view word : words) {
    if (!text->ends_with(word)) continue;
    if (IsInWord(CharOf(word, 0).first) && IsInWord(CharBefore(*text, text->size() - word.size()))) continue;
    text->remove_suffix(word.size());
    return true;
  }
  return false;
}
bool TakeFront(std::string_view* text, Words words) {
  for (const std::string_view word : words) {
    if (!text->starts_with(word)) continue;
    if (IsInWord(CharBefore(word, word.size())) && IsInWord(CharBehind(*text, word.size()))) continue;
    text->remove_prefix(word.size());
    return true;
  }
  return false;
}

constexpr std::string_view kDenyNext[] = {
    "not",        "n't",          "cannot",     "never",       "neither",     "nor",       "except",
    "without",    "anything but", "other than", "rather than", "instead of",  "eliminate", "eliminates",
    "eliminated", "eliminating",  "exclude",    "excludes",    "excluded",    "excluding", "rule out",
    "rules out",  "ruled out",    "ruling out", "reject",      "rejects",     "rejected",  "rejecting",
    "discard",    "discards",     "discarded",  "cross out",   "crossed out", "不是",      "不选",
    "不選",       "不",           "并非",       "並非",        "非",          "排除",      "除了"};
constexpr std::string_view kBetween[] = {"be",     "been",    "option", "options", "choice", "choices",
                                         "answer", "answers", "letter", "the",     "选项",   "選項"};
constexpr std::string_view kCopulas[] = {"is",     "are",      "was",     "were",      "would be", "seems",     "looks",
                                         "can be", "could be", "must be", "should be", "has been", "have been", "是",
                                         "は",     "选项",     "選項",    "项",        "項"};
constexpr std::string_view kAdverbs[] = {"also", "both",       "all",       "clearly", "therefore",
                                         "thus", "definitely", "obviously", "simply",  "just"};
constexpr std::string_view kDenied[] = {"wrong",     "incorrect", "false",     "not",        "eliminated", "excluded",
                                        "ruled out", "rejected",  "discarded", "impossible", "too",        "invalid",
                                        "unlikely",  "错",        "錯",        "不",         "排除",       "被排除",
                                        "有误",      "並非",      "并非"};
constexpr std::string_view kDenyBefore[] = {
    "isn't",    "aren't",    "wasn't",   "cannot", "can't", "can not",     "does not", "doesn't",        "do not",
    "don't",    "did not",   "didn't",   "fails",  "fail",  "contradicts", "won't",    "wouldn't",       "would not",
    "couldn't", "could not", "will not", "错",     "錯",    "不",          "ではな",   "ではありません", "被排除"};

// Whether the lower-case text denies the choice at `at`: "not A", "eliminate A", "A is wrong".
bool IsDenied(std::string_view lower, size_t at) {
  std::string_view before = Before(lower, at);
  while (TakeBack(&before, kBetween)) before = WithoutBack(before, kAround);
  if (TakeBack(&before, kDenyNext) || before.ends_with("n't")) return true;
  // "the wrong answer is A"
  if (TakeBack(&before, std::initializer_list<std::string_view>{"is", "was", "would be"})) {
    before = WithoutBack(before, kAround);
    while (TakeBack(&before, kBetween)) before = WithoutBack(before, kAround);
    if (TakeBack(&before, std::initializer_list<std::string_view>{"wrong", "incorrect"})) return true;
  }
  std::string_view behind = WithoutFront(lower.substr(at + 1, 64), kAround);
  if (TakeFront(&behind, kDenyBefore)) return true;
  if (!TakeFront(&behind, kCopulas)) return false;
  while (TakeFront(&(behind = WithoutFront(behind, kAround)), kAdverbs) || TakeFront(&behind, kCopulas)) {
  }
  return TakeFront(&behind, kDenied);
}

// A choice that stands alone.
struct Mention {
  size_t at;
  bool denied = false;
  bool joins_next = false;    // "A, B", "A or B"
  bool strongly = false;      // by more than a comma
  bool follows_word = false;  // but "is": "unlike A, B"
};

constexpr size_t kMostBetween = 24;  // bytes between two that are joined

// What joins "A, B", "(A) and (B)", "A \text{ or } B"; sets whether it is more than commas.
bool Joins(std::string_view between, bool* strongly) {
  bool joins = *strongly = false;
  while (!between.empty()) {
    if (TakeFront(&between, std::initializer_list<std::string_view>{"and", "or", "nor", "和", "或", "及", "与", "と",
                                                                    "または", "&", "/"})) {
      joins = *strongly = true;
    } else if (Consume(&between, ",")) {
      joins = true;
    } else if (!ConsumeStyle(&between) && !SkipSpaces(&between)) {
      if (kAround.find(between[0]) == std::string_view::npos) return false;
      between.remove_prefix(1);
    }
  }
  return joins;
}

// "It is B"
bool SaysWhatItIs(std::string_view lower, size_t at) {
  std::string_view before = Before(lower, at);
  return TakeBack(&before, std::initializer_list<std::string_view>{"is", "be", "was", "it's"});
}

bool FollowsWord(std::string_view lower, size_t at) {
  const std::string_view before = Before(lower, at);
  return IsInWord(CharBefore(before, before.size())) && !SaysWhatItIs(lower, at);
}

std::vector<Mention> MentionsIn(std::string_view text, std::string_view lower, std::string_view choices) {
  std::vector<Mention> mentions;
  for (size_t at = 0; at < text.size(); ++at) {
    if (!StandsAlone(text, at, choices) || IsWordAlone(text, at)) continue;
    if (!mentions.empty()) {
      Mention& last = mentions.back();
      const size_t between = at - last.at - 1;
      last.joins_next = text[last.at] != text[at] && between <= kMostBetween &&
                        Joins(text.substr(last.at + 1, between), &last.strongly);
    }
    mentions.push_back({.at = at, .denied = IsDenied(lower, at), .follows_word = FollowsWord(lower, at)});
  }
  // "not A or C", "A and B are wrong": what is said of one of them is said of all.
  for (size_t i = 0; i + 1 < mentions.size(); ++i) {
    if (mentions[i].strongly && mentions[i].joins_next) mentions[i + 1].denied |= mentions[i].denied;
  }
  bool group = false;  // of those that end with "and C"
  for (size_t i = mentions.size(); i-- > 1;) {
    const Mention& next = mentions[i];
    Mention& one = mentions[i - 1];
    group = one.joins_next && (one.strongly || (group && !SaysWhatItIs(lower, one.at)));
    one.denied |= group && next.denied;
  }
  return mentions;
}

// Whether mention `i` is one of several; where `strongly`, a comma behind a phrase ("unlike A, B") does not make it so.
bool IsOneOfSeveral(std::span<const Mention> mentions, size_t i, bool strongly) {
  const auto joined = [&](size_t k) {
    return mentions[k].joins_next && (!strongly || mentions[k].strongly || !mentions[k].follows_word) &&
           !mentions[k].denied && !mentions[k + 1].denied;
  };
  return (i + 1 < mentions.size() && joined(i)) || (i > 0 && joined(i - 1));
}

// Whether the choice at `at` is the name of a quantity: "D = 5", "x > B".
bool IsVariable(std::string_view text, size_t at) {
  constexpr std::string_view kRelations = "=<>+^";
  const std::string_view before = WithoutBack(Before(text, at), " $");
  const char last = before.empty() ? ' ' : before.back();
  const bool tag = last == '>' && before.size() > 1 && before[before.size() - 2] != ' ';  // or "->"
  if (kRelations.find(last) != std::string_view::npos && !tag) {
    return true;
  }
  const std::string_view behind = WithoutFront(text.substr(at + 1), " $");
  if (behind.starts_with('<'))
    return behind.size() > 1 && (behind[1] == ' ' || IsDecimal(static_cast<unsigned char>(behind[1])));
  return !behind.empty() && kRelations.find(behind[0]) != std::string_view::npos;
}

// "A is right", "A is the correct option"
bool IsAffirmed(std::string_view lower, size_t at) {
  std::string_view behind = WithoutFront(lower.substr(at + 1, 64), kAround);
  if (!TakeFront(&behind, kCopulas))
    return TakeFront(&behind, std::initializer_list<std::string_view>{"正确", "正確", "对", "對"});
  while (TakeFront(&(behind = WithoutFront(behind, kAround)), kAdverbs) ||
         TakeFront(&behind, std::initializer_list<std::string_view>{"the", "only"})) {
  }
  return TakeFront(
      &behind, std::initializer_list<std::string_view>{"right", "correct", "true", "best", "正确", "正確", "对", "對"});
}

// Whether the line of the choice at `at` has nothing else.
bool IsAloneOnLine(std::string_view text, size_t at) {
  constexpr std::string_view kMarks = " ()[]*\"'_$`{}.:";
  const std::string_view before = WithoutBack(Before(text, at), kMarks),
                         behind = WithoutFront(text.substr(at + 1), kMarks);
  return (before.empty() || before.back() == '\n') && (behind.empty() || behind[0] == '\n');
}

// What a choice may follow that it is no name's end.
constexpr std::string_view kCues[] = {
    "is",        "be",      "was",        "are",     "it's",     "its",      "that's",    "it",      "answer",
    "answers",   "option",  "options",    "choice",  "choices",  "letter",   "choose",    "chose",   "chosen",
    "choosing",  "pick",    "picked",     "picking", "select",   "selected", "selecting", "take",    "taking",
    "with",      "for",     "say",        "guess",   "think",    "believe",  "so",        "thus",    "hence",
    "therefore", "then",    "to",         "only",    "as",       "but",      "mean",      "means",   "namely",
    "just",      "simply",  "definitely", "clearly", "probably", "likely",   "surely",    "get",     "gets",
    "give",      "gives",   "giving",     "yield",   "yields",   "leave",    "leaves",    "leaving", "conclude",
    "go",        "correct", "right",      "best",    "final",    "solution", "result",    "if",      "and",
    "or",        "while",   "whereas",    "unlike",  "est",      "es",       "ist",       "between", "from",
    "both",      "either"};

// Whether the choice at `at` ends the name of something else: "vitamin C", "point A", "f(B)".
bool EndsName(std::string_view text, std::string_view lower, size_t at) {
  constexpr size_t kMostBytes = 32;
  const size_t begin = at - std::min(at, kMostBytes);
  const std::string_view opened = lower.substr(begin, at - begin);
  const std::string_view before = WithoutBack(opened, kAround);
  if (!IsInWord(CharBefore(before, before.size()))) return false;
  const bool spaced = before.size() < opened.size() && opened[before.size()] == ' ';
  const char32_t front = CharBefore(text, at), behind = CharBehind(text, at + 1);
  const bool enclosed = (front == '(' && behind == ')') || (front == '[' && behind == ']') ||
                        (front == '*' && (behind == '*' || behind == '.')) || (front == '"' && behind == '"');
  if (enclosed && spaced) return false;
  size_t word = before.size();
  while (word > 0 && (absl::ascii_isalpha(static_cast<unsigned char>(before[word - 1])) || before[word - 1] == '\''))
    --word;
  if (word == before.size())
    return absl::ascii_isdigit(static_cast<unsigned char>(before.back())) != 0;               // other scripts' words
  if (word > 0 && before[word - 1] == '\\') return !WithoutBack(opened, " ").ends_with('{');  // \text{B}
  return std::ranges::find(kCues, before.substr(word)) == std::end(kCues) && !before.ends_with("n't");
}

// Behind these a choice is taken, and heads no list.
constexpr std::string_view kPicks[] = {"is",   "be",     "was",       "it's",     "answer", "choose", "chose",
                                       "pick", "picked", "select",    "selected", "take",   "with",   "so",
                                       "thus", "hence",  "therefore", "option",   "choice"};

// Whether the choice at `at` begins an option: "A) yes", "B. no", at the beginning of a line or behind another option.
bool HeadsOption(std::string_view text, std::string_view lower, size_t at) {
  std::string_view behind = WithoutFront(text.substr(at + 1), "*\"_");
  if (behind.empty() || std::string_view(").:").find(behind[0]) == std::string_view::npos) return false;
  behind = WithoutFront(behind.substr(1), "*\"_:");
  if (behind.empty() || behind[0] != ' ') return false;
  behind = WithoutFront(behind, kAround);
  if (behind.empty() ||
      !(IsInWord(CharBehind(behind, 0)) || IsIdeograph(CharBehind(behind, 0)) || behind[0] == '\\' || behind[0] == '-'))
    return false;
  if (TakeFront(&behind, kCopulas)) return false;
  std::string_view before = Before(lower, at);
  return !TakeBack(&before, kPicks);
}

// Of a text that says nothing but its choice, as a box does: "B", "(b)", "\text{B}", "B. Paris", "Option B".
std::optional<char> OnlyLetter(std::string_view text, std::string_view choices) {
  const std::string lower = Lower(text = StripSpace(text));
  std::string_view in = lower;
  for (size_t before = 0; before != in.size();) {
    before = in.size();
    TakeFront(&in, std::initializer_list<std::string_view>{"the", "final", "correct", "answer", "option", "choice",
                                                           "is", ":"});
    while (ConsumeStyle(&in) || SkipSpaces(&in)) {
    }
    in = WithoutFront(in, "([*\"'_$`");
  }
  in = text.substr(text.size() - in.size());
  if (in.empty()) return std::nullopt;
  std::string capital(in);
  capital[0] = absl::ascii_toupper(static_cast<unsigned char>(capital[0]));
  if (!StandsAlone(capital, 0, choices) || IsVariable(capital, 0)) return std::nullopt;
  std::string_view behind = std::string_view(capital).substr(1);
  if (SkipSpaces(&behind) && IsInWord(CharBehind(behind, 0))) return std::nullopt;
  const std::vector<Mention> mentions = MentionsIn(capital, Lower(capital), choices);
  if (mentions.size() > 1 && IsOneOfSeveral(mentions, 0, /*strongly=*/false)) return std::nullopt;
  return capital[0];
}

// Whether a box without a choice is one all the same: of another letter, or of several.
bool ChoosesOtherwise(std::string_view box, std::string_view choices) {
  constexpr std::string_view kAll = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  if (StripSpace(box).size() == 1 && OnlyLetter(box, kAll).has_value()) return true;
  const std::vector<Mention> mentions = MentionsIn(box, Lower(box), choices);
  return mentions.size() > 1 && mentions[0].joins_next;
}

// Where an "answer" is, by the words for it.
struct AnswerWord {
  size_t begin, end;
};
std::vector<AnswerWord> AnswerWords(std::string_view lower) {
  std::vector<AnswerWord> words;
  for (const std::string_view word : {"answer", "答案", "答え", "정답"}) {
    for (size_t at = lower.find(word); at != std::string_view::npos; at = lower.find(word, at + word.size())) {
      words.push_back({at, at + word.size()});
    }
  }
  std::ranges::sort(words, {}, &AnswerWord::begin);
  return words;
}

// Where B may be in "B is the right answer", of which `answer` is where the last word begins.
std::optional<size_t> PlaceNamedAnswer(std::string_view lower, size_t answer) {
  std::string_view begin = lower.substr(0, answer);
  const auto take = [&](Words words) {
    begin = WithoutBack(begin, " ");
    return TakeBack(&begin, words);
  };
  take(std::initializer_list<std::string_view>{"right", "correct", "best", "final", "only"});
  if (!take(std::initializer_list<std::string_view>{"the"}) || !take(std::initializer_list<std::string_view>{"is"})) {
    return std::nullopt;
  }
  const size_t at = begin.find_last_not_of(kAround);
  if (at == std::string_view::npos) return std::nullopt;
  return at;
}

// Goes through a text's "answer"s.
class AnswerReader {
 public:
  AnswerReader(std::string_view text, std::string_view choices)
      : text_(text), lower_(Lower(text)), choices_(choices), mentions_(MentionsIn(text, lower_, choices)) {}

  std::optional<char> Choice() const {
    const std::vector<AnswerWord> words = AnswerWords(lower_);
    for (size_t i = words.size(); i-- > 0;) {
      bool several = false;
      const std::optional<char> said = After(words[i], &several);
      if (said.has_value() || several) return said;
    }
    return Last();
  }

 private:
  // The first mention from `at` on that is not denied, before `end`.
  std::optional<size_t> MentionFrom(size_t at, size_t end) const {
    for (auto m = std::ranges::lower_bound(mentions_, at, {}, &Mention::at); m != mentions_.end() && m->at < end; ++m) {
      if (!m->denied && !IsVariable(text_, m->at)) return m - mentions_.begin();
    }
    return std::nullopt;
  }

  // What is said to be the answer behind, or before, the word for it; sets `*several` where that is more than one.
  std::optional<char> After(const AnswerWord& word, bool* several) const {
    const auto chosen = [&](size_t mention) -> std::optional<char> {
      *several = IsOneOfSeveral(mentions_, mention, /*strongly=*/false);
      return *several ? std::nullopt : std::optional<char>(text_[mentions_[mention].at]);
    };
    std::string_view in = std::string_view(lower_).substr(word.end);
    const auto take = [&](Words words) {
      in = WithoutFront(in, " *_");
      return TakeFront(&in, words);
    };
    take(std::initializer_list<std::string_view>{"option", "choice"});
    // What is denied is for its sentence to see.
    bool says = in.starts_with(" isn't");
    if (!says) {
      says = take(std::initializer_list<std::string_view>{
          "must be", "should be", "would be", "will be", "has to be", "can only be", "is",     ":",    "=",
          "—",       "->",        "→",        "应该是",  "應該是",    "应该选",      "應該選", "应为", "應為",
          "是",      "为",        "為",       "选",      "選",        "は",          "은",     "는"});
      if (says) take(std::initializer_list<std::string_view>{":", "—"});
    }
    take(std::initializer_list<std::string_view>{"option", "choice", "选项", "選項", "选", "選"});
    size_t at = lower_.size() - in.size();
    if (says) at = std::min(text_.size(), text_.find_first_not_of("\n *_", at));
    at = std::min(text_.size(), text_.find_first_not_of(kAround, at));
    std::string_view styled = text_.substr(at);
    while (ConsumeStyle(&styled) || SkipSpaces(&styled)) {
    }
    if (!styled.empty() && styled.size() < text_.size() - at && text_[at] == '\\') at = text_.size() - styled.size();
    const auto here = std::ranges::lower_bound(mentions_, at, {}, &Mention::at);
    const bool direct = here != mentions_.end() && here->at == at;
    if (direct && !here->denied) return chosen(here - mentions_.begin());
    // "(b)", "answer: b"
    if (says && !direct && at < text_.size() && absl::ascii_islower(static_cast<unsigned char>(text_[at]))) {
      const char32_t behind = CharBehind(text_, at + 1);
      std::string capital(text_.substr(at, 4));
      capital[0] = absl::ascii_toupper(static_cast<unsigned char>(capital[0]));
      const bool bracketed = at > 0 && (text_[at - 1] == '(' || text_[at - 1] == '[' || text_[at - 1] == '*');
      const bool ends = behind == 0 || behind == ')' || behind == '.' || behind == '\n' || (bracketed && behind != ' ');
      if (ends && StandsAlone(capital, 0, choices_)) return capital[0];
    }
    if (!says && !direct) {
      const std::optional<size_t> named = PlaceNamedAnswer(lower_, word.begin);
      const auto mention = std::ranges::lower_bound(mentions_, named.value_or(text_.size()), {}, &Mention::at);
      if (mention == mentions_.end() || mention->at != named || mention->denied) return std::nullopt;
      return chosen(mention - mentions_.begin());
    }
    constexpr size_t kMostBytes = 200;
    const std::string_view sentence = text_.substr(0, at + kMostBytes);
    const size_t end = std::min(sentence.size(), sentence.find_first_of(".!?;\n", at));
    if (const std::optional<size_t> mention = MentionFrom(at, end)) return chosen(*mention);
    return std::nullopt;
  }

  // Whether the text has several choices and nothing else: "A\nB\nC".
  bool ListsAlone() const {
    size_t characters = 0;
    for (size_t at = 0; at < text_.size(); at += CharOf(text_, at).second) {
      const char32_t c = CharOf(text_, at).first;
      characters += IsInWord(c) || IsIdeograph(c);
    }
    const bool same =
        std::ranges::all_of(mentions_, [&](const Mention& m) { return text_[m.at] == text_[mentions_[0].at]; });
    return characters == mentions_.size() && !same;
  }

  // The last that is said to be right, or the one that has a line for itself.
  std::optional<size_t> LastAffirmed() const {
    std::optional<size_t> last, alone;
    std::set<char> lines;
    for (size_t i = 0; i < mentions_.size(); ++i) {
      if (mentions_[i].denied || IsOneOfSeveral(mentions_, i, /*strongly=*/true)) continue;
      if (IsAffirmed(lower_, mentions_[i].at)) last = i;
      if (!IsAloneOnLine(text_, mentions_[i].at)) continue;
      lines.insert(text_[mentions_[i].at]);
      alone = i;
    }
    return lines.size() == 1 ? std::max(last, alone) : last;
  }

  // "(b)" or "option b", where no other is in the text.
  std::optional<char> SmallLetter() const {
    std::set<char> letters;
    for (size_t at = 1; at < text_.size(); ++at) {
      const char c = absl::ascii_toupper(static_cast<unsigned char>(text_[at]));
      if (c == text_[at] || choices_.find(c) == std::string_view::npos || IsInWord(CharBehind(text_, at + 1))) continue;
      std::string_view before = Before(lower_, at);
      const bool named =
          text_[at - 1] == ' ' && TakeBack(&before, std::initializer_list<std::string_view>{"option", "choice"});
      const bool bracketed = text_[at - 1] == '(' && CharBehind(text_, at + 1) == ')';
      if ((named || bracketed) && !IsDenied(lower_, at)) letters.insert(c);
    }
    return letters.size() == 1 ? std::optional<char>(*letters.begin()) : std::nullopt;
  }

  // The last that stands alone.
  std::optional<char> Last() const {
    if (mentions_.empty()) {
      const std::optional<char> only = OnlyLetter(text_, choices_);
      return only.has_value() ? only : SmallLetter();
    }
    if (ListsAlone()) return std::nullopt;
    if (const std::optional<size_t> said = LastAffirmed()) return text_[mentions_[*said].at];
    std::vector<bool> heads;
    std::set<char> options;
    for (const Mention& mention : mentions_) {
      heads.push_back(HeadsOption(text_, lower_, mention.at));
      if (heads.back()) options.insert(text_[mention.at]);
    }
    for (size_t i = mentions_.size(); i-- > 0;) {
      const size_t at = mentions_[i].at;
      if (mentions_[i].denied || IsVariable(text_, at) || (heads[i] && options.size() > 1)) continue;
      if (IsOneOfSeveral(mentions_, i, /*strongly=*/true)) return std::nullopt;
      if (!EndsName(text_, lower_, at)) return text_[at];
    }
    return std::nullopt;
  }

  const std::string_view text_;
  const std::string lower_;
  const std::string_view choices_;
  const std::vector<Mention> mentions_;
};

}  // namespace

std::optional<char> ChosenLetter(std::string_view text, std::string_view choices) {
  const std::string plain = Plain(text);
  std::vector<std::string_view> boxes;
  if (LastBoxed(plain).has_value()) boxes = BoxedContents(plain);
  for (size_t i = boxes.size(); i-- > 0;) {
    if (const std::optional<char> letter = OnlyLetter(boxes[i], choices)) return letter;
    if (ChoosesOtherwise(boxes[i], choices)) return std::nullopt;
  }
  return AnswerReader(plain, choices).Choice();
}

}  // namespace quartet

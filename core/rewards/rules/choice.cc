#include "core/rewards/rules/choice.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "core/rewards/boxed.h"
#include "core/rewards/extract.h"
#include "core/rewards/math/grammar/signs.h"
#include "core/rewards/math/text/amends.h"
#include "core/rewards/rules/choice_words.h"
#include "core/rewards/rules/plain_text.h"

namespace quartet {
namespace {

using Kind = ChoiceWord::Kind;
using Meanings = std::initializer_list<std::string_view>;

// What may stand between a letter and what is said of it.
constexpr std::string_view kBetween[] = {"filler", "the",   "option", "is", "it", "maybe", "also",
                                         "think",  "right", ":",      "=",  "-",  "—"};
constexpr std::string_view kBetweenAndComma[] = {"filler", "the",   "option", "is", "it", "maybe", "also",
                                                 "think",  "right", ":",      "=",  "-",  "—",     ","};
constexpr size_t kMostBetween = 12;

// What may stand before the word that says that an answer is none.
constexpr std::string_view kBeforeCue[] = {"filler", "the", "is", "think", "maybe"};
// Behind these a letter is taken, and heads no option.
constexpr std::string_view kTakes[] = {"is",  "answer", "option",    "choose", "so", "wait",
                                       "but", "not",    "eliminate", "and",    "or", "think"};
// Beside what is not understood, what an option may begin with.
constexpr std::string_view kOptions[] = {"the", "filler", "yes", "no", "true", "maybe", "it", "because"};
constexpr std::string_view kJoins[] = {"and", "or", "/", "&", "|"};

bool IsOne(const ChoiceWord& word, std::span<const std::string_view> meanings) {
  return (word.kind == Kind::kKnown || word.kind == Kind::kMark) &&
         std::ranges::find(meanings, word.text) != meanings.end();
}
bool IsOne(const ChoiceWord& word, Meanings meanings) {
  return IsOne(word, std::span(meanings.begin(), meanings.size()));
}

// What a text chooses.
struct Choosing {
  char letter = 0;      // 0: several
  bool plain = true;    // no "might", "perhaps"
  bool adds = false;    // "also D", "or D": to what was chosen before
  bool amends = false;  // "no, D", "wait, D"
};

// One sentence: which of its letters stand as choices, and what it chooses.
class Sentence {
 public:
  // `lists`: heads of options are no choices. `line`: the sentence is a line of its own.
  Sentence(std::span<const ChoiceWord> words, bool lists, bool asks, bool line)
      : words_(words), asks_(asks), line_(line) {
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i].kind == Kind::kLetter && !IsVariable(i) && !EndsName(i) && !(lists && HeadsOption(words, i))) {
        letters_.push_back(Read(i));
      }
    }
    Spread();
    DenyBehind();
    live_from_.resize(letters_.size());
    for (size_t k = letters_.size(); k-- > 0;) {
      if (k + 1 < letters_.size()) live_from_[k] = live_from_[k + 1];
      if (IsLive(k)) live_from_[k] = k;
    }
  }

  bool has_letters() const { return !letters_.empty(); }

  // What it chooses in words that say so: "the answer is B", "B is right", "so B"; or with a line for itself.
  std::optional<Choosing> Says() const {
    if (asks_ && !IsLone()) return std::nullopt;
    return SaysSo();
  }
  // The same, of a question that is affirmed.
  std::optional<Choosing> SaysSo() const {
    for (size_t k = letters_.size(); k-- > 0;) {
      if (IsLive(k) && letters_[k].is_amending) return Of(k);
    }
    for (size_t i = words_.size(); i-- > 0;) {
      if (!IsOne(words_[i], {"answer"})) continue;
      if (const std::optional<size_t> letter = FirstBehind(i)) return Of(*letter);
    }
    std::optional<size_t> last;
    for (size_t i = 0; i < words_.size(); ++i) {
      if (IsOne(words_[i], {"choose"}) && IsOwn(i)) last = std::max(last, FirstBehind(i));
    }
    for (size_t k = 0; k < letters_.size(); ++k) {
      if (IsLive(k) && (letters_[k].is_right || letters_[k].is_led)) last = std::max(last, std::optional(k));
    }
    if (!last.has_value() && line_ && IsLone()) last = letters_.size() - 1;
    return last.has_value() ? std::optional(Of(*last)) : std::nullopt;
  }
  // The last letter that stands as a choice.
  std::optional<Choosing> Mentions() const {
    if (asks_ && !IsLone()) return std::nullopt;
    for (size_t k = letters_.size(); k-- > 0;) {
      if (IsLive(k)) return Of(k);
    }
    return std::nullopt;
  }

  // "No.", "Wait, that is wrong."
  bool TakesBack() const { return !asks_ && TakesBack(words_); }
  bool Affirms() const { return !words_.empty() && IsOne(words_[0], {"yes"}); }

  // Whether the letter there begins an option: "A) yes", not "so A. Yes".
  static bool HeadsOption(std::span<const ChoiceWord> words, size_t i) {
    if (!words[i].heads) return false;
    const size_t next = i + 1 < words.size() && IsOne(words[i + 1], {":", ","}) ? i + 2 : i + 1;
    if (next < words.size() && words[next].kind != Kind::kOther && !IsOne(words[next], kOptions)) return false;
    if (i == 0) return true;
    return !IsOne(words[i - 1], kTakes) &&
           !(i > 1 && words[i - 1].kind == Kind::kMark && IsOne(words[i - 2], {"answer", "right", "choose", "so"}));
  }

 private:
  struct Letter {
    size_t at;
    char letter;
    bool is_denied = false;    // "not A", "A is wrong"
    bool is_other = false;     // what is said of it chooses nothing: "A is large", "if A"
    bool is_right = false;     // "A is right"
    bool is_led = false;       // "so A", "it is A"
    bool is_amending = false;  // "no, A", "wait, A"
    bool is_chosen = false;    // "answer A", "choose A": directly
    bool joins_next = false;   // "A, B", "A or B"
    bool strongly = false;     // by more than a comma
  };

  // Whether there is nothing but one letter, and marks.
  bool IsLone() const {
    return letters_.size() == 1 && IsLive(0) && std::ranges::all_of(words_, [](const auto& word) {
             return word.kind == Kind::kLetter || word.kind == Kind::kMark || IsOne(word, {"option"});
           });
  }

  // The name of a quantity: "D = 5", "x > B".
  bool IsVariable(size_t i) const {
    static constexpr std::string_view kRelations[] = {"<", ">", "+", "^", "~"};
    if (i + 1 < words_.size() && (IsOne(words_[i + 1], kRelations) || IsOne(words_[i + 1], {"="}))) return true;
    if (i == 0) return false;
    if (IsOne(words_[i - 1], {"="})) return i > 1 && words_[i - 2].kind != Kind::kKnown;
    return IsOne(words_[i - 1], kRelations);
  }
  // Of something else: "vitamin C", "point A", "f(B)".
  bool EndsName(size_t i) const {
    if (i == 0 || words_[i].enclosed) return false;
    return words_[i - 1].kind == Kind::kOther || IsOne(words_[i - 1], {"the"});
  }

  // The word before `i`, those that may stand between left aside; words_.size(): there is none.
  size_t Before(size_t i, std::span<const std::string_view> between) const {
    for (size_t steps = 0; i-- > 0 && steps < kMostBetween; ++steps) {
      if (!IsOne(words_[i], between)) return i;
    }
    return words_.size();
  }
  bool IsAt(size_t i, Meanings meanings) const { return i < words_.size() && IsOne(words_[i], meanings); }

  Letter Read(size_t at) const {
    Letter letter{.at = at, .letter = words_[at].text[0]};
    const size_t cue = Before(at, kBetween);
    letter.is_denied = IsAt(cue, {"not", "eliminate"});
    letter.is_chosen = IsAt(cue, {"answer", "choose"});
    const size_t first = letter.is_chosen ? Before(cue, kBeforeCue) : cue;
    if (letter.is_chosen) {  // "the wrong answer is A", "cannot choose A"
      letter.is_denied = IsAt(first, {"not", "eliminate", "wrong"});
    }
    letter.is_other = IsAt(first, {"if"});
    const bool leads = cue == words_.size() && at <= kMostBetween;
    letter.is_amending = at > 0 && !IsAt(at - 1, {"no"}) && IsAt(Before(at, kBetweenAndComma), {"wait", "no"});
    letter.is_led = letter.is_amending || IsAt(cue, {"so", "yes", "but", "or"}) ||
                    IsAt(Before(at, kBetweenAndComma), {"so"}) ||
                    (leads && std::any_of(words_.begin(), words_.begin() + at, [](const auto& word) {
                       return IsOne(word, {"is", "think", "right", ":", "also"});
                     }));
    // What is said of it.
    size_t behind = at + 1;
    bool is = false;
    if (IsAt(behind, {":"})) ++behind;
    while (IsAt(behind, {"is", "maybe", "filler", "the", "also", "option", "it"})) is |= IsAt(behind++, {"is"});
    if (IsAt(behind, {"wrong"}) || (is && IsAt(behind, {"not", "eliminate"}))) {
      letter.is_denied = true;
    } else if (IsAt(behind, {"right"}) || (is && IsAt(behind, {"answer", "choose"}))) {
      letter.is_right = true;
    } else if (!IsAt(behind, {"true", "fits"})) {
      const bool ends = behind == words_.size(), counts = letter.letter >= '0' && letter.letter <= '9';
      const bool goes_on = !ends && words_[behind].kind == Kind::kOther && !words_[at].enclosed && !words_[at].heads;
      letter.is_other |=
          (goes_on && counts) || (!letter.is_chosen && ((is && !ends && !IsAt(at + 1, {"it"})) || goes_on));
    }
    return letter;
  }

  // What is said of one of "A, B and C" is said of all.
  void Spread() {
    for (size_t k = 0; k + 1 < letters_.size(); ++k) {
      Letter &one = letters_[k], &next = letters_[k + 1];
      const std::span<const ChoiceWord> between = words_.subspan(one.at + 1, next.at - one.at - 1);
      // "B A C": nothing but letters.
      const bool bare = between.empty() && std::ranges::all_of(words_.subspan(next.at), [](const auto& word) {
                          return word.kind == Kind::kLetter;
                        });
      one.strongly = bare || std::ranges::any_of(between, [](const auto& word) { return IsOne(word, kJoins); });
      one.joins_next =
          one.letter != next.letter && between.size() <= 6 && (bare || !between.empty()) &&
          std::ranges::all_of(
              between,
              [](const auto& word) {
                return IsOne(word, kJoins) || IsOne(word, {",", "the", "option", "filler", "maybe", "also"});
              }) &&
          (one.strongly || std::ranges::any_of(between, [](const auto& w) { return IsOne(w, {","}); }));
      if (one.strongly && one.joins_next) next.is_denied |= one.is_denied;
    }
    bool group = false;  // of those that end with "and C"
    for (size_t k = letters_.size(); k-- > 1;) {
      const Letter& next = letters_[k];
      Letter& one = letters_[k - 1];
      group = one.joins_next && (one.strongly || group);
      if (!group || one.is_chosen || (one.at > 0 && IsOne(words_[one.at - 1], {"is", ":"}))) continue;
      one.is_denied |= next.is_denied;
      one.is_other |= next.is_other;
      one.is_right |= next.is_right;
    }
  }

  // "B looks right, but it is not": what is said at the end is of all before.
  void DenyBehind() {
    size_t but = words_.size();
    while (but > 0 && !IsOne(words_[but - 1], {"but"})) --but;
    const std::span<const ChoiceWord> end = words_.subspan(but);
    if (but == 0 || !TakesBack(end)) return;
    for (Letter& letter : letters_) letter.is_denied = true;
  }

  // "No.", "Wait, that is wrong."
  static bool TakesBack(std::span<const ChoiceWord> words) {
    static constexpr std::string_view kBack[] = {"no",    "wait",   "wrong", "not", "is", "it",
                                                 "right", "filler", "the",   ",",   "-"};
    return std::ranges::all_of(words, [](const auto& word) { return IsOne(word, kBack); }) &&
           std::ranges::any_of(words, [](const auto& word) {
             return IsOne(word, {"no", "wrong", "not"});
           });
  }

  // Whether it is the text itself that chooses there: "I choose", "so we choose", not "many choose".
  bool IsOwn(size_t choose) const {
    const size_t before = Before(choose, kBetween);
    return before == words_.size() || IsOne(words_[before], {"so", "but", "and", "wait", "no", "yes", ",", "because"});
  }

  bool IsLive(size_t k) const { return !letters_[k].is_denied && !letters_[k].is_other; }

  std::optional<size_t> FirstBehind(size_t word) const {
    const auto first = std::ranges::upper_bound(letters_, word, {}, &Letter::at);
    return first == letters_.end() ? std::nullopt : live_from_[first - letters_.begin()];
  }

  // Whether it is only said that it may be so: in its clause, or of it.
  bool IsHedged(size_t k) const {
    constexpr size_t kLongest = 24;
    const size_t at = letters_[k].at;
    for (size_t back = 1; back <= at && back < kLongest; ++back) {
      if (IsOne(words_[at - back], {",", "so", "but", "because"})) break;
      if (IsOne(words_[at - back], {"maybe"})) return true;
    }
    size_t behind = letters_[k].at + 1;
    while (IsAt(behind, {"is", "filler", "the", "also", "it"})) ++behind;
    return IsAt(behind, {"maybe"});
  }

  Choosing Of(size_t k) const {
    Choosing choosing{.letter = letters_[k].letter, .plain = !IsHedged(k)};
    for (size_t other = 0; other < letters_.size(); ++other) {
      if (other == k || !IsLive(other) || letters_[other].letter == letters_[k].letter) continue;
      const bool joined = (other == k + 1 && letters_[k].joins_next) || (other + 1 == k && letters_[other].joins_next);
      if (joined || (!choosing.plain && IsHedged(other))) choosing.letter = 0;
    }
    for (size_t i = 0; i < words_.size(); ++i) {
      choosing.adds |= IsOne(words_[i], {"also"}) || (i == 0 && IsOne(words_[i], {"or"}));
    }
    choosing.amends = letters_[k].is_amending;
    return choosing;
  }

  const std::span<const ChoiceWord> words_;
  const bool asks_, line_;
  std::vector<Letter> letters_;
  std::vector<std::optional<size_t>> live_from_;  // the first live one from each on
};

// What is chosen where `next` follows `before`: the last plain statement counts.
Choosing After(const std::optional<Choosing>& before, const Choosing& next) {
  if (!before.has_value() || next.letter == before->letter) return next;
  if (next.adds || (!next.plain && !before->plain)) return Choosing{};
  return !next.plain && !next.amends ? *before : next;
}

// Whether there are several letters and no words.
bool ListsAlone(std::span<const ChoiceWord> words) {
  std::set<std::string> letters;
  for (const ChoiceWord& word : words) {
    if (word.kind == Kind::kLetter) letters.insert(word.text);
    if (word.kind == Kind::kKnown || word.kind == Kind::kOther) return false;
  }
  return letters.size() > 1;
}

std::optional<char> ReadSentences(std::span<const ChoiceWord> words) {
  if (ListsAlone(words)) return std::nullopt;
  struct Part {
    std::span<const ChoiceWord> words;
    bool asks, line;
  };
  std::vector<Part> parts;
  std::set<std::string> heads, lines;
  for (size_t begin = 0; begin < words.size();) {
    const auto is_end = [](const ChoiceWord& word) { return word.kind == Kind::kEnd; };
    const size_t end = std::find_if(words.begin() + begin, words.end(), is_end) - words.begin();
    const auto is_line = [&](size_t at) { return at >= words.size() || words[at].text == "\n"; };
    const bool line = is_line(begin - 1) && (is_line(end) || is_line(end + 1));
    parts.push_back({words.subspan(begin, end - begin), end < words.size() && words[end].text == "?", line});
    for (size_t i = 0; i < end - begin; ++i) {
      const std::span<const ChoiceWord> in = parts.back().words;
      if (in[i].kind != Kind::kLetter) continue;
      if (Sentence::HeadsOption(in, i)) heads.insert(in[i].text);
      if (line && in.size() == 1) lines.insert(in[i].text);
    }
    begin = end + 1;
  }
  std::optional<Choosing> said, mentioned, asked;
  bool head = false;  // the sentence before is one of an option
  for (const Part& part : parts) {
    if (part.words.empty()) continue;
    const Sentence sentence(part.words, heads.size() > 1, part.asks, part.line && lines.size() == 1);
    if (const std::optional<Choosing> says = sentence.Says()) said = After(said, *says);
    if (const std::optional<Choosing> letter = sentence.Mentions()) mentioned = After(mentioned, *letter);
    if (asked.has_value() && sentence.Affirms() && !sentence.has_letters()) said = asked;
    if (sentence.TakesBack() && !head) said = mentioned = std::nullopt;
    asked = part.asks ? sentence.SaysSo() : std::nullopt;
    head = heads.size() > 1 && part.words.size() == 1 && part.words[0].heads;
  }
  const std::optional<Choosing> chosen = said.has_value() ? said : mentioned;
  if (!chosen.has_value() || chosen->letter == 0) return std::nullopt;
  return chosen->letter;
}

// Of a text that says nothing but its choice, as a box does: "B", "(b)", "\text{B}", "B. Paris", "Option B".
// Sets `*several` where it is of several, or of another letter.
std::optional<char> OnlyLetter(std::string_view text, std::string_view choices, bool* several) {
  const std::vector<ChoiceWord> words = ChoiceWords(StripSpace(text), choices, /*any_case=*/true);
  size_t at = 0;
  while (at < words.size() && IsOne(words[at], {"the", "filler", "right", "answer", "option", "is", ":"})) ++at;
  if (at == words.size() || words[at].kind != Kind::kLetter) {
    *several =
        words.size() == 1 && words[0].kind == Kind::kOther && words[0].text.size() == 1 && words[0].text[0] >= 'a';
    return std::nullopt;
  }
  const auto is_letter = [&](size_t i) { return i < words.size() && words[i].kind == Kind::kLetter; };
  const bool joins = at + 1 < words.size() && IsOne(words[at + 1], {",", "and", "or", "/", "&", "|"});
  if ((joins && is_letter(at + 2)) || is_letter(at + 1)) {
    *several = true;
    return std::nullopt;
  }
  if (at + 1 < words.size() && !words[at].enclosed && !words[at].heads) {
    const ChoiceWord& next = words[at + 1];
    if (next.kind == Kind::kOther || next.kind == Kind::kKnown || IsOne(next, {"=", "<", ">", "+", "^", "-"})) {
      return std::nullopt;
    }
  }
  return words[at].text[0];
}

}  // namespace

// "is not", "Not $", of what stands before a box.
bool EndsInNot(std::string_view before) {
  while (!before.empty() && std::string_view(" *$({\"\n").find(before.back()) != std::string_view::npos) {
    before.remove_suffix(1);
  }
  constexpr size_t kNot = 3;
  const std::string last =
      absl::AsciiStrToLower(std::string(before.substr(before.size() - std::min(before.size(), kNot))));
  return last == "not" || last == "n't";
}

std::optional<char> ChosenLetter(std::string_view text, std::string_view choices) {
  const std::string plain = math::WithPlainSigns(text);
  std::vector<std::string_view> boxes;
  if (LastBoxed(plain).has_value()) boxes = BoxedContents(plain);
  bool several = false;
  const auto begin = [&](size_t box) { return static_cast<size_t>(boxes[box].data() - plain.data()); };
  for (size_t i = boxes.size(); i-- > 0;) {
    const std::optional<char> letter = OnlyLetter(boxes[i], choices, &several);
    if (several) return std::nullopt;
    if (!letter.has_value()) continue;
    const std::string_view text_of_all = plain;
    const std::string_view before = text_of_all.substr(0, text_of_all.rfind('\\', begin(i)));
    if (i > 0) {
      const std::optional<char> other = OnlyLetter(boxes[i - 1], choices, &several);
      const size_t end = begin(i - 1) + boxes[i - 1].size() + 1;
      if (other.has_value() && other != letter && end <= before.size() && math::IsGuess(before.substr(end))) {
        return std::nullopt;
      }
    }
    const bool denied = EndsInNot(before) || math::Retracts(text_of_all.substr(begin(i) + boxes[i].size()));
    return denied ? std::nullopt : letter;
  }
  const std::vector<ChoiceWord> words = ChoiceWords(plain, choices, /*any_case=*/false);
  if (std::ranges::any_of(words, [](const auto& word) { return word.kind == Kind::kLetter; }))
    return ReadSentences(words);
  return OnlyLetter(plain, choices, &several);
}

}  // namespace quartet

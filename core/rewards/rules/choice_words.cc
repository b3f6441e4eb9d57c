#include "core/rewards/rules/choice_words.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "core/rewards/rules/plain_text.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet {
namespace {

using Kind = ChoiceWord::Kind;

// All that is understood: the meaning, and the words that have it; "+" joins two.
// "filler" may stand between others and says nothing.
constexpr std::pair<std::string_view, std::string_view> kVocabulary[] = {
    {"answer", "answer answers réponse respuesta antwort ответ Ответ 答案 答え 정답 solution"},
    {"option", "option options choice choices statement letter 选项 選項 项 項"},
    {"is",
     "is are was were be been being am equals seems looks appears must should would will does do did has have had can "
     "est es ist was 是 为 為 は 은 는 가 이 被 应 應 应该 應該"},
    {"not",
     "not never doubt neither nor except without nothing+but anything+but other+than rather+than instead+of unlike "
     "compared+to "
     "compared+with contrast+to contrast+with "
     "no+es n'est+pas nicht "
     "不是 不 不选 不選 不能 不能选 不要 不要选 别 别选 不会是 不可能是 并非 並非 非 除了"},
    {"eliminate",
     "eliminate eliminates eliminated eliminating exclude excludes excluded excluding rule+out rules+out ruled+out "
     "ruling+out reject rejects rejected rejecting discard discards discarded discarding cross+out crossed+out 排除"},
    {"wrong",
     "wrong incorrect false impossible invalid unlikely too fails fail contradicts contradict 错 錯 错误 錯誤 有误 "
     "不对 "
     "不對 不正确 不正確 ではな ではない ではありません じゃない じゃありません 아닙니다 아니다 아니에요"},
    {"right", "right correct best better 正确 正確 对 對"},
    {"true", "true valid"},
    {"choose",
     "choose chose chosen choosing pick picked picking select selected selecting take taking go going leave leaves "
     "leaving left remains "
     "remaining 选 選 选择 選擇"},
    {"so", "so thus hence therefore then conclude concluding 所以 因此 故"},
    {"wait", "wait actually sorry hmm correction oops scratch reconsidering rechecking 等等"},
    {"no", "no nope"},
    {"yes", "yes"},
    {"or", "or 或 または"},
    {"and", "and & 和 及 与 と"},
    {"also", "also 也"},
    {"but", "but while whereas however yet"},
    {"because", "because since as which where when given"},
    {"maybe", "maybe perhaps possibly may might could potentially conceivably 可能 也许"},
    {"if", "if whether unless suppose supposing assuming"},
    {"fits", "fits fit works holds matches satisfies suits makes+sense"},
    {"it", "it this that"},
    {"think",
     "think say guess believe mean means namely for with to from between get gets give gives giving yield yields"},
    {"the", "the"},
    {"filler",
     "i we my our no+doubt only both either all just simply clearly definitely obviously certainly probably likely "
     "surely "
     "really indeed "
     "final result 都 です 입니다 的 都是"},
};

// By each word (two with a space between), its meaning.
const absl::flat_hash_map<std::string, std::string>& Vocabulary() {
  static const auto* const vocabulary = [] {
    auto* const all = new absl::flat_hash_map<std::string, std::string>;
    for (const auto& [meaning, words] : kVocabulary) {
      for (const absl::string_view word : absl::StrSplit(absl::string_view(words.data(), words.size()), ' ')) {
        std::string key(word);
        std::replace(key.begin(), key.end(), '+', ' ');
        all->try_emplace(key, meaning);
      }
    }
    return all;
  }();
  return *vocabulary;
}

bool IsInWord(char32_t c) { return c != '_' && IsWordChar(c) && !IsIdeograph(c); }
bool IsDecimal(char32_t c) { return c >= '0' && c <= '9'; }
bool IsSmall(char32_t c) { return c >= 'a' && c <= 'z'; }

// The character that ends before `at`, or begins at it; 0: there is none.
char32_t CharBefore(std::string_view text, size_t at) {
  if (at == 0) return 0;
  size_t begin = at - 1;
  while (begin > 0 && at - begin < 4 && (text[begin] & 0xc0) == 0x80) --begin;
  return CharOf(text, begin).first;
}
char32_t CharBehind(std::string_view text, size_t at) { return at < text.size() ? CharOf(text, at).first : 0; }

// Whether the letter at `at` is no part of a word, a number or a name such as x_A.
bool StandsAlone(std::string_view text, size_t at) {
  const char32_t before = CharBefore(text, at), behind = CharBehind(text, at + 1);
  if (IsInWord(before) || IsInWord(behind) || before == '\\') return false;
  const auto joins = [](char32_t c) { return c == '\'' || c == '_' || c == '-'; };
  if (joins(before) && IsInWord(CharBefore(text, at - 1))) return false;
  if (joins(behind) && IsInWord(CharBehind(text, at + 2))) return false;
  if (!IsDecimal(static_cast<unsigned char>(text[at]))) return true;
  if (behind == '%' || before == '-' || before == '$') return false;
  const auto parts = [](char32_t c) { return c == '.' || c == ',' || c == '/' || c == ':'; };
  return !(parts(before) && IsDecimal(CharBefore(text, at - 1))) &&
         !(parts(behind) && IsDecimal(CharBehind(text, at + 2)));
}

// What brackets, quotes and styles are written with.
bool IsAround(char c) { return std::string_view("()[]{}*_\"'`$|#").find(c) != std::string_view::npos; }

class WordReader {
 public:
  WordReader(std::string_view text, std::string_view choices, bool any_case)
      : text_(text), choices_(choices), any_case_(any_case) {}

  std::vector<ChoiceWord> Read() {
    while (at_ < text_.size()) {
      if (!ReadSpace() && !ReadTag() && !ReadCommand() && !ReadLetter() && !ReadWord() && !ReadIdeographs()) ReadMark();
    }
    return std::move(words_);
  }

 private:
  bool Is(size_t back, std::string_view meaning) const {
    return back <= words_.size() && words_[words_.size() - back].text == meaning;
  }

  // Adds the word, or what it is together with the one before it.
  void Add(const std::string& word) {
    const auto& known = Vocabulary();
    if (!last_word_.empty()) {
      if (const auto both = known.find(last_word_ + " " + word); both != known.end()) {
        words_.back() = {Kind::kKnown, both->second};
        last_word_.clear();
        return;
      }
    }
    if (const auto one = known.find(word); one != known.end()) {
      words_.push_back({Kind::kKnown, one->second});
    } else {
      words_.push_back({Kind::kOther, word});
    }
    last_word_ = word;
  }
  void AddMark(Kind kind, std::string_view mark) {
    words_.push_back({kind, std::string(mark)});
    last_word_.clear();
  }

  bool ReadSpace() {
    if (text_[at_] == '\n') {
      AddMark(Kind::kEnd, "\n");
      ++at_;
      return true;
    }
    std::string_view in = text_.substr(at_, 8);
    const size_t before = in.size();
    if (!SkipSpaces(&in)) {
      if (!IsAround(text_[at_])) return false;
      ++at_;
      return true;
    }
    // TeX's spaces may hide a line's end behind them.
    const size_t line = text_.substr(at_, before - in.size()).find('\n');
    at_ += std::min(line, before - in.size());
    return true;
  }

  // "<answer>", as a word
  bool ReadTag() {
    if (text_[at_] != '<') return false;
    size_t begin = at_ + 1;
    if (begin < text_.size() && text_[begin] == '/') ++begin;
    size_t end = begin;
    while (end < text_.size() && end < begin + 32 && IsSmall(text_[end])) ++end;
    if (end == begin || end >= text_.size() || text_[end] != '>') return false;
    const std::string name(text_.substr(begin, end - begin));
    if (text_[begin - 1] == '/') {
      AddMark(Kind::kEnd, "\n");
    } else {
      Add(name);
      AddMark(Kind::kMark, ":");
    }
    at_ = end + 1;
    return true;
  }

  // TeX's: styles and brackets are nothing, others are names.
  bool ReadCommand() {
    if (text_[at_] != '\\') return false;
    std::string_view in = text_.substr(at_);
    if (ConsumeStyle(&in)) {
      at_ = text_.size() - in.size();
      return true;
    }
    size_t end = at_ + 1;
    while (end < text_.size() && absl::ascii_isalpha(static_cast<unsigned char>(text_[end]))) ++end;
    if (end > at_ + 1) {
      AddMark(Kind::kOther, text_.substr(at_, end - at_));
    } else {
      end = std::min(text_.size(), end + 1);
    }
    at_ = end;
    return true;
  }

  // Whether the letter at `at_`, which stands alone, is an article or a pronoun: "A total of", "I think".
  bool IsWordAlone() const {
    if ((text_[at_] != 'A' && text_[at_] != 'I') || CharBehind(text_, at_ + 1) != ' ' ||
        !IsSmall(CharBehind(text_, at_ + 2))) {
      return false;
    }
    size_t end = at_ + 2;
    while (end < text_.size() && IsSmall(text_[end])) ++end;
    const std::string next(text_.substr(at_ + 2, end - at_ - 2));
    if (text_[at_] == 'I' && next == "is") return false;
    const auto known = Vocabulary().find(next);
    if (known == Vocabulary().end()) return true;
    constexpr std::string_view kVerbs[] = {"is", "not", "wrong", "fits", "but", "because", "and", "or", "so", "also"};
    const auto* const may_follow = std::ranges::find(kVerbs, std::string_view(known->second));
    return may_follow == std::end(kVerbs) || (text_[at_] == 'I' && may_follow < std::begin(kVerbs) + 4);
  }

  // A word, but for TeX's commands: "\textbf{(A)}".
  bool IsBehindWord(size_t at) const {
    if (!IsInWord(CharBefore(text_, at))) return false;
    while (at > 0 && absl::ascii_isalpha(static_cast<unsigned char>(text_[at - 1]))) --at;
    return CharBefore(text_, at) != '\\';
  }

  bool ReadLetter() {
    const unsigned char c = text_[at_];
    const char capital = static_cast<char>(absl::ascii_toupper(c));
    if (choices_.find(capital) == std::string_view::npos || !StandsAlone(text_, at_)) return false;
    // The brackets, quotes and styles around it.
    size_t begin = at_, end = at_ + 1;
    while (begin > 0 && at_ - begin < 8 && IsAround(text_[begin - 1])) --begin;
    while (end < text_.size() && end - at_ < 8 && IsAround(text_[end])) ++end;
    const char32_t front = CharBefore(text_, at_), back = CharBehind(text_, at_ + 1);
    const bool enclosed = ((front == '(' && back == ')') || (front == '[' && back == ']') ||
                           (front == '*' && (back == '*' || back == '.' || back == ':' || back == ')')) ||
                           (front == '"' && back == '"')) &&
                          !IsBehindWord(begin);
    if (IsSmall(c) && !any_case_) {
      const bool bracketed = enclosed && front != '"';
      const bool named = Is(1, "option") && CharBefore(text_, at_) == ' ';
      const bool answers = Is(1, "answer") || ((Is(1, "is") || Is(1, ":")) && (Is(2, "answer") || Is(3, "answer")));
      const char32_t next = CharBehind(text_, end);
      const bool ends = next == 0 || next == '.' || next == '\n' || back == ')' || back == '.';
      if (!bracketed && !named && !(answers && ends)) return false;
    }
    if (!IsSmall(c) && !enclosed && IsWordAlone()) return false;
    ChoiceWord letter{Kind::kLetter, std::string(1, capital), enclosed};
    size_t behind = at_ + 1;
    while (behind < text_.size() && std::string_view("*_\"").find(text_[behind]) != std::string_view::npos) ++behind;
    if (behind < text_.size() && std::string_view(").:").find(text_[behind]) != std::string_view::npos) {
      ++behind;
      while (behind < text_.size() && std::string_view("*_\":").find(text_[behind]) != std::string_view::npos) ++behind;
      const size_t word = std::min(text_.size(), text_.find_first_not_of(" *_$\"([", behind));
      const char32_t first = CharBehind(text_, word);
      letter.heads = word > behind && (IsInWord(first) || IsIdeograph(first) || first == '\\' || first == '-');
    }
    words_.push_back(letter);
    last_word_.clear();
    ++at_;
    return true;
  }

  // Letters, digits and what joins them: "don't", "Type-B", "2.5".
  bool ReadWord() {
    if (!IsInWord(CharOf(text_, at_).first)) return false;
    size_t end = at_;
    while (end < text_.size()) {
      const auto [c, bytes] = CharOf(text_, end);
      const bool joins = c == '\'' || c == '_' || c == '-' || c == '.' || c == ',' || c == '/' || c == '%';
      const char32_t before = CharBefore(text_, end), behind = CharBehind(text_, end + bytes);
      const bool number = IsDecimal(before) && (IsDecimal(behind) || c == '%');
      const bool name = IsInWord(before) && IsInWord(behind) && (c == '\'' || c == '_' || c == '-');
      const bool dotted = c == '.' && IsSmall(before) && IsSmall(behind);  // "i.e", "example.com"
      if (!IsInWord(c) && !(joins && (number || name || dotted))) break;
      end += bytes;
    }
    std::string word(text_.substr(at_, end - at_));
    absl::AsciiStrToLower(&word);
    at_ = end;
    const size_t apostrophe = word.find('\'');
    if (word == "cannot" || word.ends_with("n't")) {
      Add("is");
      Add("not");
    } else if (apostrophe != std::string::npos &&
               (word.ends_with("'s") || word.ends_with("'d") || word.ends_with("'ll"))) {
      Add(word.substr(0, apostrophe));
      if (word.ends_with("'s")) Add("is");
    } else {
      Add(word);
    }
    return true;
  }

  // Words of ideographs have no space between: the longest that is understood, else one character.
  bool ReadIdeographs() {
    if (!IsIdeograph(CharOf(text_, at_).first)) return false;
    size_t ends[8], count = 0;
    for (size_t end = at_; count < std::size(ends) && end < text_.size() && IsIdeograph(CharOf(text_, end).first);) {
      end += CharOf(text_, end).second;
      ends[count++] = end;
    }
    size_t end = ends[0];
    for (size_t i = count; i-- > 0;) {
      if (Vocabulary().contains(std::string(text_.substr(at_, ends[i] - at_)))) {
        end = ends[i];
        break;
      }
    }
    Add(std::string(text_.substr(at_, end - at_)));
    last_word_.clear();
    at_ = end;
    return true;
  }

  void ReadMark() {
    const auto [c, bytes] = CharOf(text_, at_);
    if (const std::string_view relation = text_.substr(at_, 4); relation == "\\leq" || relation == "\\geq") {
      at_ += relation.size();
      return AddMark(Kind::kMark, relation == "\\leq" ? "<" : ">");
    }
    const std::string_view mark = text_.substr(at_, bytes);
    at_ += bytes;
    if (c == '-' || c == '=') {  // an arrow is a mark like others
      size_t end = at_;
      while (end < text_.size() && (text_[end] == '-' || text_[end] == '=')) ++end;
      if (end < text_.size() && text_[end] == '>') {
        at_ = end + 1;
        return AddMark(Kind::kMark, ":");
      }
    }
    if (c == '&') return Add("&");
    AddMark(c == '.' || c == '!' || c == '?' || c == ';' ? Kind::kEnd : Kind::kMark, mark);
  }

  const std::string_view text_, choices_;
  const bool any_case_;
  size_t at_ = 0;
  std::vector<ChoiceWord> words_;
  std::string last_word_;  // as it is written; "": it joins no other
};

}  // namespace

std::vector<ChoiceWord> ChoiceWords(std::string_view text, std::string_view choices, bool any_case) {
  return WordReader(text, choices, any_case).Read();
}

}  // namespace quartet

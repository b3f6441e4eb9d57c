#include "core/rewards/rules/number.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/errors/shown.h"
#include "core/rewards/boxed.h"
#include "core/rewards/extract.h"
#include "core/rewards/math/grammar/signs.h"
#include "core/rewards/math/text/amends.h"
#include "core/rewards/math/text/around.h"
#include "core/rewards/math/vocabulary/value_words.h"
#include "core/rewards/rules/numeral.h"
#include "core/rewards/rules/plain_text.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet {
namespace {

constexpr std::string_view kClosers[] = {"}", ")",  "]", "\\)", "\\]", "\\right)", "\\right]",
                                         "$", "**", "*", "_",   "`",   "\"",       "'"};

// "The final answer is", "Answer", which say that the answer follows.
bool SkipAnswerWords(std::string_view* text) {
  std::string_view in = *text;
  for (const std::string_view word : {"最终答案", "最后答案", "答案"}) {
    if (!Consume(&in, word)) continue;
    if (!Consume(&in, "是") && !Consume(&in, "为") && !Consume(&in, "為")) {
      SkipSpaces(&in);
      if (!Consume(&in, ":")) return false;
    }
    *text = in;
    return true;
  }
  const auto take = [&](std::string_view word) {
    if (in.size() < word.size() ||
        !absl::EqualsIgnoreCase(absl::string_view(in.data(), word.size()),
                                absl::string_view(word.data(), word.size())) ||
        (in.size() > word.size() && IsLetter(in[word.size()]))) {
      return false;
    }
    in.remove_prefix(word.size());
    SkipSpaces(&in);
    return true;
  };
  for (const std::string_view word :
       {"so", "thus", "hence", "therefore", ",", "the", "my", "our", "final", "correct", "right"})
    take(word);
  if (!take("answer")) return false;
  while (ConsumeAny(&in, kClosers) || SkipSpaces(&in)) {
  }
  take("is");
  *text = in;
  return true;
}

// Abbreviations, which may be joined to their number and are no products of variables.
constexpr std::string_view kUnits[] = {
    "m",   "s",    "g",   "h",   "L",   "l",   "N",   "J",   "W",    "V",  "K",   "C",   "F",    "mm",
    "cm",  "dm",   "km",  "mg",  "kg",  "ml",  "mL",  "cl",  "dl",   "kL", "lb",  "lbs", "oz",   "ft",
    "in",  "yd",   "yds", "mi",  "mph", "kph", "ms",  "min", "mins", "hr", "hrs", "sec", "secs", "kW",
    "kWh", "kJ",   "kN",  "Hz",  "kHz", "MHz", "GHz", "GB",  "MB",   "KB", "TB",  "kB",  "Pa",   "kPa",
    "eV",  "kcal", "cal", "mol", "rad", "deg", "pts", "pcs", "pp",   "sq", "cu",  "gal"};
// Words of two letters or fewer that are no products of variables either.
constexpr std::string_view kShortWords[] = {"a",  "an", "in", "of", "at", "is", "by", "on", "as", "to", "so", "we",
                                            "he", "it", "I",  "am", "pm", "AM", "PM", "if", "us", "US", "UK"};
// Upright letters that are scales and variables.
constexpr std::string_view kNoUnitLetters[] = {"k", "M", "B", "x", "y", "z", "n", "i"};
bool IsIn(std::span<const std::string_view> words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

bool IsGreek(char32_t c) { return c >= 0x370 && c <= 0x3ff; }
// Takes a word: letters, and "'" and "-" between them; ideographs alone.
std::string_view TakeWord(std::string_view* text) {
  size_t size = 0;
  bool ideographs = false;
  while (size < text->size()) {
    const auto [c, bytes] = CharOf(*text, size);
    const bool joins = (c == '\'' || c == '-') && size > 0 && size + 1 < text->size() && IsLetter((*text)[size + 1]);
    if (!joins &&
        (c == '_' || c == 0xfffd || IsGreek(c) || (c < 0x80 && IsDigit(static_cast<char>(c))) || !IsWordChar(c)))
      break;
    if (size > 0 && IsIdeograph(c) != ideographs) break;
    ideographs = IsIdeograph(c);
    size += bytes;
  }
  const std::string_view word = text->substr(0, size);
  text->remove_prefix(size);
  return word;
}

// With plain signs, but for primes, which are units of angles and lengths here and no quotes.
std::string Plain(std::string_view text) {
  constexpr absl::string_view kPrime = "\u2032";
  std::vector<std::string> parts = absl::StrSplit(absl::string_view(text.data(), text.size()), kPrime);
  for (std::string& part : parts) part = math::WithPlainSigns(part);
  return absl::StrJoin(parts, kPrime);
}

// What stands behind a number.
class Rest {
 public:
  explicit Rest(std::string_view rest) : rest_(rest) {}

  // Whether it changes nothing about the number: a unit, what decorates it, punctuation and words behind that.
  bool LeavesNumber() {
    while (!rest_.empty()) {
      if (SkipSpaces(&rest_) || Consume(&rest_, "\\\\") || ConsumeAny(&rest_, kBrackets) ||
          (unit_ && Consume(&rest_, "\\cdot"))) {
        spaced_ = true;
      } else if (ConsumeStyle(&rest_) || Consume(&rest_, "\\rm") || Consume(&rest_, "\\bf")) {
        upright_ = spaced_ = true;
      } else if (Consume(&rest_, "\\approx")) {
        return words_.MayEnd();
      } else if (Consume(&rest_, "\\%") || Consume(&rest_, "%") || Consume(&rest_, "^\\circ") ||
                 Consume(&rest_, "^{\\circ}") || Consume(&rest_, "\\degree") || Consume(&rest_, "\\Omega") ||
                 ConsumeCurrency(&rest_)) {
        TakeSign();
      } else if (spaced_ && !unit_ && Consume(&rest_, "\\mu")) {  // of "\mu m": the unit follows
        SkipSpaces(&rest_);
        std::string_view unit = rest_;
        if (!IsIn(kUnits, TakeWord(&unit))) return false;
        TakeSign();
      } else if (ConsumeAny(&rest_, kClosers)) {
        upright_ = false;
      } else if (Consume(&rest_, "/")) {
        spaced_ = true;
        std::string_view word = rest_;
        ConsumeStyle(&word);
        if (TakeWord(&word).empty()) return false;
      } else if (rest_[0] == '^') {
        if (!unit_ || !TakePower(&rest_, 1)) return false;
      } else if (rest_[0] == '<') {
        // A tag, or a special token.
        return words_.MayEnd() && rest_.size() > 1 && (rest_[1] == '/' || rest_[1] == '|' || IsLetter(rest_[1]));
      } else if (rest_[0] == '=') {
        return words_.MayEnd() && IsWriting(rest_.substr(1));
      } else if (rest_[0] == '.' || (unit_ && rest_[0] == '!')) {
        if (!words_.MayEnd() || IsAmended(rest_.substr(1))) return false;
        return rest_.size() == 1 || (rest_[1] != '.' && !IsDigit(rest_[1]) && !IsLetter(rest_[1]));
      } else if (ConsumeAny(&rest_, kPauses)) {
        return words_.MayEnd() && !IsAmended(rest_) && WordsFollow();
      } else if (!TakeUnit()) {
        return false;
      }
    }
    return words_.MayEnd();
  }

  // Whether `text` writes a number out: digits and what computes with them, or a name.
  static bool IsWriting(std::string_view text) {
    text = StripSpace(text);
    std::string_view name = text;
    if (TakeWord(&name).size() == 1 && StripSpace(name).find_first_not_of("$*.)}") == std::string_view::npos)
      return true;
    bool digits = false;
    while (!text.empty()) {
      digits |= IsDigit(text[0]);
      if (!Consume(&text, "\\times") && !Consume(&text, "\\cdot") && !Consume(&text, "\\div") &&
          !Consume(&text, "\\frac") && !SkipSpaces(&text) && !ConsumeAny(&text, kClosers) && !ConsumeOpener(&text) &&
          !ConsumeCurrency(&text)) {
        if (!IsDigit(text[0]) && std::string_view("+-*/.,%").find(text[0]) == std::string_view::npos) return false;
        text.remove_prefix(1);
      }
    }
    return digits;
  }

 private:
  static constexpr std::string_view kBrackets[] = {"(", "[", "{", "\\(", "\\["};
  static constexpr std::string_view kPauses[] = {",", ";", ":", "—"};

  static bool IsAmended(std::string_view behind) { return math::Retracts(behind) || math::Offers(behind); }

  bool WordsFollow() {
    while (SkipSpaces(&rest_) || ConsumeAny(&rest_, kClosers)) {
    }
    ConsumeStyle(&rest_);
    SkipSpaces(&rest_);
    if (rest_.empty()) return true;
    const std::string_view word = TakeWord(&rest_);
    if (word.empty()) return false;
    return word == "a" || word == "I" || (word.size() > 1 && !math::ChangesValue(word) && word != "and");
  }

  // A word of a unit, or a sign that means nothing.
  bool TakeUnit() {
    const char32_t first = CharOf(rest_, 0).first;
    if (const std::string_view word = TakeWord(&rest_); !word.empty()) return TakesWord(word, first);
    if (first < 0x2600 || (first > 0x27bf && first < 0x1f000)) return false;
    rest_.remove_prefix(CharOf(rest_, 0).second);
    return true;
  }

  // A sign of a unit.
  void TakeSign() {
    unit_ = spaced_ = true;
    words_ = math::WordsBehind(/*after_unit=*/true);
  }

  bool TakesWord(std::string_view word, char32_t first) {
    const bool attached = !spaced_ && !unit_;
    const bool abbreviated = IsIn(kUnits, word) && (upright_ || word != "K");
    if (!IsIdeograph(first) && (attached || (word.size() <= 2 && !upright_)) && !abbreviated &&
        (attached || !IsIn(kShortWords, word))) {
      return false;
    }
    if (upright_ && IsIn(kNoUnitLetters, word)) return false;
    if (math::FactorOf(word).has_value() && words_.AtNumber()) return false;
    if (abbreviated && words_.AtNumber()) {
      TakeSign();
    } else if (!words_.Take(word)) {
      return false;
    }
    unit_ = true;
    spaced_ = false;
    return true;
  }

  std::string_view rest_;
  bool spaced_ = false;   // there was white space, or another thing that parts words
  bool upright_ = false;  // within \text{} and its like
  bool unit_ = false;     // there was a word or a sign of a unit
  math::WordsBehind words_;
};

// "x", "total cost", "f(2)", "\angle ABC", "\text{total}": what may stand before "=".
bool IsName(std::string_view text) {
  constexpr size_t kMostBytes = 100;
  text = StripSpace(text);
  if (text.empty() || text.size() > kMostBytes) return false;
  for (const std::string_view operation :
       {"frac", "sqrt", "times", "cdot", "div", "pm", "mp", "binom", "sum", "prod", "int"}) {
    if (text.find("\\" + std::string(operation)) != std::string_view::npos) return false;
  }
  if (!IsLetter(text[0]) && text[0] != '\\' && !(text[0] & 0x80)) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (IsLetter(c) || (c & 0x80) || std::string_view(" _{}\\'()").find(c) != std::string_view::npos) continue;
    if (!IsDigit(c) || text[i - 1] == ' ') return false;
  }
  return true;
}

std::optional<mpq_class> WholeNumber(std::string_view text) {
  const std::optional<mpq_class> number = TakeNumber(&text);
  return number.has_value() && Rest(text).LeavesNumber() ? number : std::nullopt;
}

// Of a plain text, whose first line counts.
std::optional<mpq_class> PlainNumber(std::string_view text) {
  constexpr int kMostNames = 8;  // "x = y = 72"
  SkipOpeners(&text);
  if (SkipAnswerWords(&text)) SkipOpeners(&text);
  const size_t line_end = std::min(text.size(), text.find('\n'));
  // A list of guesses.
  if (const std::string_view next = StripSpace(text.substr(line_end)); !next.empty() && IsDigit(next[0])) {
    return std::nullopt;
  }
  text = text.substr(0, line_end);
  for (int names = 0; names <= kMostNames; ++names) {
    if (std::optional<mpq_class> number = WholeNumber(text)) return number;
    const size_t first = text.find('='), last = text.rfind('=');
    if (first == std::string_view::npos) return std::nullopt;
    if (!IsName(text.substr(0, first))) {
      return Rest::IsWriting(text.substr(0, last)) ? WholeNumber(text.substr(last + 1)) : std::nullopt;
    }
    text.remove_prefix(first + 1);
    SkipOpeners(&text);
  }
  return std::nullopt;
}

// Lists and comparisons, as labels of other tasks are: ["5"], f(1) == 2.
bool IsCode(std::string_view label) {
  label = StripSpace(label);
  return label.find("==") != std::string_view::npos || (label.starts_with('[') && label.ends_with(']'));
}

constexpr std::string_view kMark = "####";

// Whether what stands behind a mark is a heading, such as "#### Check" or "#### 2. Check"; the latter where lines
// follow that it heads, or it is not the first mark.
bool IsHeading(std::string_view text, bool is_first) {
  constexpr char kSpace[] = " \t\r\n";
  const bool is_currency = StripSpace(text).starts_with('$');
  SkipOpeners(&text);
  if (SkipAnswerWords(&text)) SkipOpeners(&text);
  std::string_view rest = text;
  if (!TakeNumber(&rest).has_value()) return !PlainNumber(text).has_value();
  const size_t line_end = std::min(rest.find('\n'), rest.size());
  const bool heads = rest.find_first_not_of(kSpace, line_end) != std::string_view::npos;
  if (is_currency || (is_first && !heads)) return false;
  return rest.size() >= 2 && (rest[0] == '.' || rest[0] == ')' || rest[0] == ':') &&
         (rest[1] == ' ' || rest[1] == '\t') && rest.find_first_not_of(" \t", 1) < rest.find('\n');
}

}  // namespace

float ExactMatch(std::string_view response, std::string_view label) {
  return StripSpace(response) == StripSpace(label);
}

std::optional<mpq_class> NumberIn(std::string_view text) {
  std::string plain = Plain(text);
  std::ranges::replace(plain, '\n', ' ');
  return PlainNumber(plain);
}

std::optional<mpq_class> NumberOfAnswer(std::string_view response) {
  const std::optional<std::string_view> boxed = LastBoxed(response);
  const size_t box = boxed.has_value() ? boxed->data() - response.data() : 0;
  size_t end = response.size();
  for (size_t mark = response.rfind(kMark); mark != std::string_view::npos && mark >= box;
       mark = mark == 0 ? std::string_view::npos : response.rfind(kMark, mark - 1)) {
    const size_t begin = std::min(end, mark + kMark.size());
    const std::string plain = Plain(response.substr(begin, end - begin));
    end = mark;
    const bool is_first = response.substr(0, mark).find(kMark) == std::string_view::npos;
    if (!IsHeading(plain, is_first)) return PlainNumber(plain);
  }
  if (!boxed.has_value()) return std::nullopt;
  const std::string plain = Plain(response);
  const std::optional<std::string_view> content = LastBoxed(plain);
  const bool alone = content.has_value() && math::FactorAround(plain, *content, *content) == "";
  return alone ? NumberIn(*content) : std::nullopt;
}

absl::StatusOr<float> NumberMatch(std::string_view response, std::string_view label) {
  std::optional<mpq_class> expected = IsCode(label) ? std::nullopt : NumberIn(label);
  if (!expected.has_value()) expected = NumberOfAnswer(label);
  if (!expected.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("label ", Quoted(label),
                     " is no number, which rule \"number\" needs: such as 72, -1,234.5, 3/4, or text with "
                     "\"#### 72\" or \\boxed{72}"));
  }
  const std::optional<mpq_class> given = NumberOfAnswer(response);
  return given.has_value() && *given == *expected ? 1.0f : 0.0f;
}

}  // namespace quartet

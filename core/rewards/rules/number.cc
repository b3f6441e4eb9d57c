#include "core/rewards/rules/number.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/answer_extraction/boxed.h"
#include "core/errors/shown.h"
#include "core/rewards/extract.h"
#include "core/rewards/math/text/amends.h"
#include "core/rewards/math/text/around.h"
#include "core/rewards/math/vocabulary/value_words.h"
#include "core/rewards/rules/plain_text.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet {
namespace {

// Exponents beyond this are not taken for numbers: their digits are written out.
constexpr int kMaxExponent = 400;
// Nor are numbers of more digits: comparing them takes time that grows with the square.
constexpr size_t kMaxDigits = 1000;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

constexpr std::string_view kCurrencies[] = {"\\$",
                                            "US$",
                                            "HK$",
                                            "NZ$",
                                            "A$",
                                            "C$",
                                            "S$",
                                            "R$",
                                            "€",
                                            "£",
                                            "¥",
                                            "₹",
                                            "₩",
                                            "₽",
                                            "₫",
                                            "₱",
                                            "฿",
                                            "₪",
                                            "₺",
                                            "₦",
                                            "¢",
                                            "\\pounds",
                                            "\\textsterling",
                                            "\\euro",
                                            "\\texteuro"};
constexpr std::string_view kCurrencyCodes[] = {"USD", "EUR", "GBP", "JPY", "CNY", "RMB", "INR", "AUD",
                                               "CAD", "CHF", "HKD", "SGD", "NZD", "KRW", "Rs.", "Rs"};
constexpr std::string_view kOpeners[] = {"$",
                                         "**",
                                         "*",
                                         "_",
                                         "`",
                                         "\"",
                                         "'",
                                         "(",
                                         "[",
                                         "{",
                                         "}",
                                         "\\(",
                                         "\\[",
                                         "\\left(",
                                         "\\left[",
                                         "=",
                                         ":",
                                         "\\approx",
                                         "\\displaystyle",
                                         "\\bf",
                                         "\\rm"};
constexpr std::string_view kClosers[] = {"}", ")",  "]", "\\)", "\\]", "\\right)", "\\right]",
                                         "$", "**", "*", "_",   "`",   "\"",       "'"};
// What people and TeX put before numbers without meaning anything by it.
void SkipOpeners(std::string_view* text) {
  for (;;) {
    if (SkipSpaces(text) || ConsumeStyle(text) || ConsumeAny(text, kCurrencies)) continue;
    std::string_view in = *text;
    if (ConsumeAny(&in, kCurrencyCodes) && !in.empty() && !IsLetter(in[0])) {
      *text = in;
    } else if (!ConsumeAny(text, kOpeners)) {
      return;
    }
  }
}

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

// Takes a run of digits.
std::string_view TakeRun(std::string_view* text) {
  size_t size = 0;
  while (size < text->size() && IsDigit((*text)[size])) ++size;
  const std::string_view run = text->substr(0, size);
  text->remove_prefix(size);
  return run;
}

// Takes `separator` and a group of `size` digits, no more.
bool TakeGroup(std::string_view* text, std::string_view separator, size_t size, std::string* digits) {
  std::string_view in = *text;
  if (!Consume(&in, separator)) return false;
  const std::string_view group = TakeRun(&in);
  if (group.size() != size) return false;
  *digits += group;
  *text = in;
  return true;
}

// The digits of a whole number, in groups or not: 1234567, 1,234,567, 1 234 567, 12,34,567.
std::string TakeWhole(std::string_view* text) {
  std::string digits(TakeRun(text));
  if (digits.empty() || digits.size() > 3) return digits;
  for (const std::string_view separator : {",", "{,}", "\\,", " ", ",\\!", "'"}) {
    bool grouped = false;
    while (TakeGroup(text, separator, 3, &digits)) grouped = true;
    if (grouped) return digits;
  }
  if (digits.size() == 3) return digits;
  std::string_view in = *text;
  std::string indian = digits;
  while (TakeGroup(&in, ",", 2, &indian)) {
  }
  if (!TakeGroup(&in, ",", 3, &indian)) return digits;
  *text = in;
  return indian;
}

// True where a minus sign was there.
bool ConsumeSign(std::string_view* text) {
  if (Consume(text, "-") || Consume(text, "\xE2\x80\x94")) return true;  // U+2014, a dash
  Consume(text, "+");
  return false;
}

mpq_class PowerOfTen(int exponent) {
  mpz_class power;
  mpz_ui_pow_ui(power.get_mpz_t(), 10, static_cast<unsigned long>(std::abs(exponent)));
  return exponent < 0 ? mpq_class(1, power) : mpq_class(power);
}

// Digits up to kMaxExponent.
std::optional<int> TakeExponent(std::string_view* text) {
  int exponent = 0;
  const std::string_view run = TakeRun(text);
  if (run.empty()) return std::nullopt;
  for (const char digit : run) {
    exponent = exponent * 10 + (digit - '0');
    if (exponent > kMaxExponent) return std::nullopt;
  }
  return exponent;
}

struct Decimal {
  mpq_class value;
  bool whole = true;  // neither a decimal part nor an exponent
};

// An unsigned decimal number.
std::optional<Decimal> TakeDecimal(std::string_view* text) {
  std::string_view in = *text;
  std::string digits = TakeWhole(&in);
  Decimal decimal;
  int exponent = 0;
  if (in.size() >= 2 && in[0] == '.' && IsDigit(in[1])) {
    in.remove_prefix(1);
    const std::string_view run = TakeRun(&in);
    digits += run;
    if (digits.size() > kMaxDigits) return std::nullopt;
    exponent = -static_cast<int>(run.size());
    decimal.whole = false;
  }
  if (digits.empty() || digits.size() > kMaxDigits) return std::nullopt;
  if (!in.empty() && (in[0] == 'e' || in[0] == 'E')) {
    std::string_view tail = in.substr(1);
    const bool negative = Consume(&tail, "-");
    if (!negative) Consume(&tail, "+");
    if (!tail.empty() && IsDigit(tail[0])) {
      const std::optional<int> said = TakeExponent(&tail);
      if (!said.has_value()) return std::nullopt;
      exponent += negative ? -*said : *said;
      in = tail;
      decimal.whole = false;
    }
  }
  decimal.value = mpq_class(mpz_class(digits, 10)) * PowerOfTen(exponent);
  *text = in;
  return decimal;
}

// "{-1,234.5}", or one digit: an argument of \frac.
std::optional<mpq_class> TakeArgument(std::string_view* text) {
  std::string_view in = *text;
  SkipSpaces(&in);
  if (!in.empty() && IsDigit(in[0])) {
    *text = in.substr(1);
    return mpq_class(in[0] - '0');
  }
  if (!Consume(&in, "{")) return std::nullopt;
  SkipSpaces(&in);
  const bool negative = ConsumeSign(&in);
  const std::optional<Decimal> decimal = TakeDecimal(&in);
  SkipSpaces(&in);
  if (!decimal.has_value() || !Consume(&in, "}")) return std::nullopt;
  *text = in;
  return negative ? mpq_class(-decimal->value) : decimal->value;
}

std::optional<mpq_class> TakeFraction(std::string_view* text) {
  std::string_view in = *text;
  if (!Consume(&in, "\\frac") && !Consume(&in, "\\dfrac") && !Consume(&in, "\\tfrac") && !Consume(&in, "\\cfrac")) {
    return std::nullopt;
  }
  const std::optional<mpq_class> above = TakeArgument(&in);
  const std::optional<mpq_class> below = above.has_value() ? TakeArgument(&in) : std::nullopt;
  if (!below.has_value() || *below == 0) return std::nullopt;
  *text = in;
  return mpq_class(*above / *below);
}

// "^5", "^{-5}" behind `base`.
std::optional<mpq_class> TakePower(std::string_view* text, const mpz_class& base) {
  std::string_view in = *text;
  if (!Consume(&in, "^")) return std::nullopt;
  const bool braces = Consume(&in, "{");
  const bool negative = braces && Consume(&in, "-");
  const std::optional<int> exponent = TakeExponent(&in);
  if (!exponent.has_value() || (braces && !Consume(&in, "}"))) return std::nullopt;
  if (mpz_sizeinbase(base.get_mpz_t(), 10) * static_cast<size_t>(*exponent) > kMaxDigits) return std::nullopt;
  mpz_class power;
  mpz_pow_ui(power.get_mpz_t(), base.get_mpz_t(), static_cast<unsigned long>(*exponent));
  if (negative && power == 0) return std::nullopt;
  *text = in;
  return negative ? mpq_class(1, power) : mpq_class(power);
}

// Behind a whole number the fraction that makes a mixed one of it: "1/4", "\frac{1}{4}"; below 1.
std::optional<mpq_class> TakePart(std::string_view* text) {
  std::string_view in = *text;
  const bool spaced = SkipSpaces(&in);
  std::optional<mpq_class> part = TakeFraction(&in);
  if (!part.has_value() && spaced) {
    const std::string above(TakeRun(&in));
    if (above.empty() || above.size() > kMaxDigits || !Consume(&in, "/")) return std::nullopt;
    const std::string below(TakeRun(&in));
    if (below.empty() || below.size() > kMaxDigits || mpz_class(below, 10) == 0) return std::nullopt;
    part = mpq_class(mpz_class(above, 10)) / mpq_class(mpz_class(below, 10));
  }
  if (!part.has_value() || *part <= 0 || *part >= 1) return std::nullopt;
  *text = in;
  return part;
}

std::optional<mpq_class> TakeUnsigned(std::string_view* text) {
  if (std::optional<mpq_class> fraction = TakeFraction(text)) return fraction;
  const std::optional<Decimal> decimal = TakeDecimal(text);
  if (!decimal.has_value()) return std::nullopt;
  const mpq_class& value = decimal->value;
  if (decimal->whole) {
    if (const std::optional<mpq_class> part = TakePart(text)) return mpq_class(value + *part);
    if (std::optional<mpq_class> power = TakePower(text, value.get_num())) return power;
  }
  std::string_view in = *text;
  SkipSpaces(&in);
  if (Consume(&in, "/")) {
    SkipSpaces(&in);
    const std::optional<Decimal> below = TakeDecimal(&in);
    if (below.has_value() && below->value == 0) return std::nullopt;
    if (!below.has_value()) return value;
    *text = in;
    return mpq_class(value / below->value);
  }
  for (const std::string_view times : {"\\times", "\\cdot", "*", "x", "X"}) {
    if (!Consume(&in, times)) continue;
    SkipSpaces(&in);
    const std::optional<mpq_class> power = Consume(&in, "10") ? TakePower(&in, 10) : std::nullopt;
    if (!power.has_value()) return value;
    *text = in;
    return mpq_class(value * *power);
  }
  return value;
}

// A number, and what decorates it before it.
std::optional<mpq_class> TakeNumber(std::string_view* text) {
  SkipOpeners(text);
  const bool negative = ConsumeSign(text);
  SkipOpeners(text);
  const std::optional<mpq_class> value = TakeUnsigned(text);
  if (!value.has_value()) return std::nullopt;
  return negative ? mpq_class(-*value) : *value;
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
                 Consume(&rest_, "Ω") || Consume(&rest_, "\u2126") || ConsumeAny(&rest_, kCurrencies)) {
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
          !Consume(&text, "\\frac") && !SkipSpaces(&text) && !ConsumeAny(&text, kClosers) &&
          !ConsumeAny(&text, kOpeners) && !ConsumeAny(&text, kCurrencies)) {
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

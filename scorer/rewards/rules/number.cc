#include "scorer/rewards/rules/number.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/answer_extraction/boxed.h"
#include "scorer/rewards/extract.h"

namespace quartet {
namespace {

// Exponents beyond this are not taken for numbers: their digits are written out.
constexpr int kMaxExponent = 400;
// Nor are numbers of more digits: comparing them takes time that grows with the square.
constexpr size_t kMaxDigits = 1000;

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool Consume(std::string_view* text, std::string_view prefix) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// White space and what TeX and people put around numbers without meaning anything by it.
void SkipDecoration(std::string_view* text) {
  for (;;) {
    if (!text->empty() && IsSpace(text->front())) {
      text->remove_prefix(1);
    } else if (!Consume(text, "\\$") && !Consume(text, "$") && !Consume(text, "*") && !Consume(text, "\\,") &&
               !Consume(text, "\\!")) {
      return;
    }
  }
}

// An unsigned decimal as digits and a power of ten: value = digits * 10^exponent.
struct Decimal {
  std::string digits;
  int exponent = 0;
};

std::optional<Decimal> ParseDecimal(std::string_view* text) {
  std::string_view in = *text;
  Decimal decimal;
  while (!in.empty() && IsDigit(in.front())) {
    decimal.digits += in.front();
    in.remove_prefix(1);
    // A comma belongs to the number where exactly three digits follow.
    for (std::string_view comma : {",", "{,}", "\\,", " "}) {
      const std::string_view group = in.substr(std::min(in.size(), comma.size()));
      if (in.substr(0, comma.size()) == comma && group.size() >= 3 && IsDigit(group[0]) && IsDigit(group[1]) &&
          IsDigit(group[2]) && (group.size() == 3 || !IsDigit(group[3]))) {
        in = group;
      }
    }
  }
  if (in.size() >= 2 && in[0] == '.' && IsDigit(in[1])) {
    in.remove_prefix(1);
    while (!in.empty() && IsDigit(in.front())) {
      decimal.digits += in.front();
      --decimal.exponent;
      in.remove_prefix(1);
    }
  }
  if (decimal.digits.empty() || decimal.digits.size() > kMaxDigits) return std::nullopt;
  if (!in.empty() && (in[0] == 'e' || in[0] == 'E')) {
    std::string_view tail = in.substr(1);
    const bool negative = Consume(&tail, "-");
    if (!negative) Consume(&tail, "+");
    if (!tail.empty() && IsDigit(tail.front())) {
      int exponent = 0;
      while (!tail.empty() && IsDigit(tail.front())) {
        exponent = exponent * 10 + (tail.front() - '0');
        if (exponent > kMaxExponent) return std::nullopt;
        tail.remove_prefix(1);
      }
      decimal.exponent += negative ? -exponent : exponent;
      in = tail;
    }
  }
  *text = in;
  return decimal;
}

// True where a minus sign was there.
bool ConsumeSign(std::string_view* text) {
  if (Consume(text, "-") || Consume(text, "\xE2\x88\x92")) return true;  // U+2212, the minus sign
  Consume(text, "+");
  return false;
}

// Without what styles a number, or gives it a name: "\\text{72}", "x = 72".
std::string_view Bare(std::string_view text) {
  text = StripSpace(text);
  for (const std::string_view style : {"\\text{", "\\textbf{", "\\mathbf{", "\\mathrm{"}) {
    if (Consume(&text, style) && text.ends_with('}')) text.remove_suffix(1);
  }
  if (text.size() > 1 && IsLetter(text[0])) {
    std::string_view value = text.substr(1);
    while (!value.empty() && IsSpace(value[0])) value.remove_prefix(1);
    if (Consume(&value, "=")) text = value;
  }
  return text;
}

// `text` holds a number and no other.
std::optional<Number> OnlyNumber(std::string_view text) {
  text = Bare(text);
  std::string_view rest;
  std::optional<Number> number = Number::Parse(text, &rest);
  if (!number.has_value() || std::any_of(rest.begin(), rest.end(), IsDigit)) return std::nullopt;
  return number;
}

constexpr std::string_view kMark = "####";

// The number behind a mark; nothing where it is a heading, such as "#### 2. Check".
std::optional<Number> MarkedNumber(std::string_view text) {
  std::string_view rest;
  std::optional<Number> number = Number::Parse(text, &rest);
  const bool counts = rest.size() >= 2 && (rest[0] == '.' || rest[0] == ')' || rest[0] == ':') &&
                      (rest[1] == ' ' || rest[1] == '\t') && rest.find_first_not_of(" \t", 1) < rest.find('\n');
  return counts ? std::nullopt : number;
}

}  // namespace

float ExactMatch(std::string_view response, std::string_view label) {
  return StripSpace(response) == StripSpace(label);
}

std::optional<Number> Number::Parse(std::string_view text, std::string_view* rest) {
  SkipDecoration(&text);
  Number number;
  bool negative = ConsumeSign(&text);
  SkipDecoration(&text);  // -$5

  std::optional<Decimal> above, below;
  if (Consume(&text, "\\frac{") || Consume(&text, "\\dfrac{") || Consume(&text, "\\tfrac{")) {
    if (ConsumeSign(&text)) negative = !negative;
    above = ParseDecimal(&text);
    if (!above.has_value() || !Consume(&text, "}{")) return std::nullopt;
    if (ConsumeSign(&text)) negative = !negative;
    below = ParseDecimal(&text);
    if (!below.has_value() || !Consume(&text, "}")) return std::nullopt;
  } else {
    above = ParseDecimal(&text);
    if (!above.has_value()) return std::nullopt;
    std::string_view slash = text;
    while (!slash.empty() && slash.front() == ' ') slash.remove_prefix(1);
    if (Consume(&slash, "/")) {
      while (!slash.empty() && slash.front() == ' ') slash.remove_prefix(1);
      below = ParseDecimal(&slash);
      if (below.has_value()) text = slash;
    }
    // "3,4" and "1.2.3" are something else; "x" or "e" after digits may make another number of them.
    if (text.size() >= 2 && (text[0] == ',' || text[0] == '.' || text[0] == '/') && IsDigit(text[1])) {
      return std::nullopt;
    }
    if (!Consume(&text, "^\\circ")) Consume(&text, "^{\\circ}");
    if (!text.empty() && (IsLetter(text[0]) || text[0] == '^' || text[0] == '_')) return std::nullopt;
  }

  mpz_class numerator(above->digits, 10), denominator(below.has_value() ? below->digits : "1", 10);
  if (denominator == 0) return std::nullopt;
  const int exponent = above->exponent - (below.has_value() ? below->exponent : 0);
  mpz_class power;
  mpz_ui_pow_ui(power.get_mpz_t(), 10, static_cast<unsigned long>(std::abs(exponent)));
  (exponent < 0 ? denominator : numerator) *= power;
  number.value_ = mpq_class(negative ? -numerator : numerator, denominator);
  number.value_.canonicalize();
  if (!Consume(&text, "\\%")) Consume(&text, "%");
  if (rest != nullptr) *rest = text;
  return number;
}

std::optional<Number> AnswerOf(std::string_view response) {
  const std::optional<std::string_view> boxed = LastBoxed(response);
  const size_t box = boxed.has_value() ? boxed->data() - response.data() : 0;
  for (size_t mark = response.rfind(kMark); mark != std::string_view::npos && mark >= box;
       mark = mark == 0 ? std::string_view::npos : response.rfind(kMark, mark - 1)) {
    if (std::optional<Number> number = MarkedNumber(response.substr(mark + kMark.size()))) return number;
  }
  return boxed.has_value() ? OnlyNumber(*boxed) : std::nullopt;
}

absl::StatusOr<float> NumberMatch(std::string_view response, std::string_view label) {
  std::optional<Number> expected = OnlyNumber(label);
  if (!expected.has_value()) expected = AnswerOf(label);
  if (!expected.has_value()) {
    const std::string shown = absl::CEscape(absl::string_view(label.data(), std::min<size_t>(label.size(), 80)));
    return absl::InvalidArgumentError(
        absl::StrCat("label \"", shown,
                     "\" is no number, which rule \"number\" needs: such as 72, -1,234.5, 3/4, or text with "
                     "\"#### 72\" or \\boxed{72}"));
  }
  const std::optional<Number> given = AnswerOf(response);
  return given.has_value() && *given == *expected ? 1.0f : 0.0f;
}

}  // namespace quartet

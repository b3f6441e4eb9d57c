#include "core/rewards/rules/numeral.h"

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>

#include "core/rewards/math/values/power_of_ten.h"
#include "core/rewards/rules/plain_text.h"

namespace quartet {
namespace {

// Exponents beyond this are not taken for numbers: their digits are written out.
constexpr int kMaxExponent = 400;
// Nor are numbers of more digits: comparing them takes time that grows with the square.
constexpr size_t kMaxDigits = 1000;

constexpr std::string_view kCurrencies[] = {
    "\\$",    "US$",       "HK$", "NZ$",   "A$",      "C$",       "S$",
    "R$",     "₩",         "₽", "₫",     "₱",       "฿",        "₪",
    "₺",      "₦",         "¢",   "\\yen", "\\rupee", "\\pounds", "\\textsterling",
    "\\euro", "\\texteuro"};
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

}  // namespace

bool ConsumeCurrency(std::string_view* text) { return ConsumeAny(text, kCurrencies); }

bool ConsumeOpener(std::string_view* text) { return ConsumeAny(text, kOpeners); }

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

namespace {

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
  if (Consume(&in, "/") || Consume(&in, "\\div")) {
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

}  // namespace

std::optional<mpq_class> TakeNumber(std::string_view* text) {
  SkipOpeners(text);
  const bool negative = ConsumeSign(text);
  SkipOpeners(text);
  const std::optional<mpq_class> value = TakeUnsigned(text);
  if (!value.has_value()) return std::nullopt;
  return negative ? mpq_class(-*value) : *value;
}

}  // namespace quartet

// The rules "exact_match" and "number": functions of two texts. LibTorch-free, thread safe.
#pragma once

#include <gmpxx.h>

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quartet {

// 1 where `response` and `label` are the same text, white space around either left aside; else 0.
float ExactMatch(std::string_view response, std::string_view label);

// An exact rational number.
class Number {
 public:
  // The number that `text` starts with, after white space and "$": an optional sign, digits with commas between groups
  // of three, a decimal part, an exponent; then perhaps "/" and another such number; or \frac{a}{b} (\dfrac, \tfrac). A
  // percent sign after it is left aside: 50% is 50. Nothing where there is no number, where digits or letters that
  // would make it another one follow, or where the denominator is 0. `*rest`, if not null: what follows.
  static std::optional<Number> Parse(std::string_view text, std::string_view* rest = nullptr);

  friend bool operator==(const Number& a, const Number& b) { return a.value_ == b.value_; }

 private:
  mpq_class value_;
};

// The number that a response gives as its answer: the one after the last "####"; where there is no "####", the content
// of the last \boxed{} (braces balanced), which must hold no further number.
std::optional<Number> AnswerOf(std::string_view response);

// 1 where AnswerOf(response) equals the label's number, 0 where it does not or there is none. INVALID_ARGUMENT, naming
// the label, where that is no number: neither alone nor as AnswerOf understands it.
absl::StatusOr<float> NumberMatch(std::string_view response, std::string_view label);

}  // namespace quartet

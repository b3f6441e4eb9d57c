// The rules "exact_match" and "number": functions of two texts. LibTorch-free, thread safe.
#pragma once

#include <gmpxx.h>

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace quartet {

// 1 where `response` and `label` are the same text, white space around either left aside; else 0.
float ExactMatch(std::string_view response, std::string_view label);

// The number that `text`, a line, says and no other: digits with commas or thin spaces between their groups, a decimal
// part, an exponent; a/b, \frac{a}{b}, mixed numbers, 3 \times 10^5, 10^5; a percent sign is left aside: 50% is 50.
// Around it may stand what decorates it (styles, brackets, quotes, currencies), before it "answer is", "Answer:" or a
// name and
// "=", behind it a unit and, after punctuation, words. Nothing where anything else does, such as a factor, a further
// number, "million" or "or".
std::optional<mpq_class> NumberIn(std::string_view text);

// NumberIn what a response gives as its answer: the text after the last "####" that begins with a number (others are
// headings), or the last \boxed{}, whichever comes later.
std::optional<mpq_class> NumberOfAnswer(std::string_view response);

// 1 where NumberOfAnswer(response) equals the label's number, 0 where it does not or there is none. INVALID_ARGUMENT,
// naming the label, where that is no number: neither alone nor as NumberOfAnswer understands it.
absl::StatusOr<float> NumberMatch(std::string_view response, std::string_view label);

}  // namespace quartet

// Whether two answers are the same mathematically: the rules "math" and "open_reasoner_zero".
#pragma once

#include <string_view>

#include "core/rewards/math/values/truth.h"

namespace quartet::math {

// Of two answers in LaTeX or plain text. Equal are: the same text but for space and styles; scalars of the same value,
// exactly where both are rational at all rational values of their variables, else to 12 digits at some values (where
// one is written as a decimal number: to 6 digits behind the point); sequences, intervals, matrices, element by
// element; sets and unenclosed lists in any order; relations and inequalities of the same solutions as intervals; "x =
// 5" and "5". Exact tests are probabilistic (Schwartz and Zippel): values of variables are drawn out of so many that
// different expressions agree at them by chance with a probability below 1e-6.
//
// kUnknown: not equal as far as can be told, but something in them could be neither decided (numbers that agree to 300
// digits, or that would take too long) nor given a value (1/0).
Truth Compare(std::string_view label, std::string_view answer);

}  // namespace quartet::math

// LaTeX formulas to expressions.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "scorer/rewards/math/expression.h"
#include "scorer/rewards/math/lexer.h"

namespace quartet::math {

// The elements of an answer: what commas, semicolons, "and" and "or" separate outside of brackets; each with \pm twice,
// once for either sign. Nothing where it is no formula that is understood: sums, integrals, limits, dots, ...
std::optional<std::vector<ExpressionPtr>> Parse(std::string_view latex, LetterE e = LetterE::kExponent);

}  // namespace quartet::math

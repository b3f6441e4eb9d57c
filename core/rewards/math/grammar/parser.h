// LaTeX formulas to expressions.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "core/rewards/math/grammar/lexer.h"
#include "core/rewards/math/values/expression.h"

namespace quartet::math {

struct Formula {
  // What commas, semicolons, "and" and "or" separate outside of brackets; each with \pm twice, once for either sign.
  std::vector<ExpressionPtr> elements;
  enum class Joint { kNone, kComma, kAnd, kOr };  // of them; kComma also where they differ
  Joint joint = Joint::kNone;
};

// Nothing where it is no formula that is understood: sums, integrals, limits, dots, ...
std::optional<Formula> Parse(std::string_view latex, LetterE e = LetterE::kExponent);

}  // namespace quartet::math

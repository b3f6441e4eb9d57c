// Inequalities of polynomials and their quotients, solved.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/rewards/math/values/expression.h"

namespace quartet::math {

struct Solutions {
  std::string name;  // of the only variable
  // Where both sides meet, or have no value, from left to right; and whether it holds at each of these.
  std::vector<ExpressionPtr> bounds;
  std::vector<bool> at_bound;
  // Left of the first, between each two, and right of the last: one more.
  std::vector<bool> between;
};

// Of <, <= or != between quotients of polynomials in one variable, with rational coefficients; nothing of others, and
// where a bound is no rational number and no root of a quadratic equation.
std::optional<Solutions> Solve(const Expression& relation);

}  // namespace quartet::math

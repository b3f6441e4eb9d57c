// What an answer gives a value to.
#pragma once

#include <optional>

#include "core/rewards/math/values/expression.h"

namespace quartet::math {

// x, x_1, \angle A, f(x), AB, |AB|, "area", (x, y), xy, AB/CD: what is named, without a number of its own. 2x, x/2 and
// |x| are none.
bool IsName(const Expression& of);
// Of "x = 5", "5 = x" and "2 + 3 = 5" the 5; nothing of what is no value of a name.
std::optional<ExpressionPtr> ValueSaid(const Expression& of);

}  // namespace quartet::math

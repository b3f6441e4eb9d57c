// Products and powers, of which some do not commute.
#pragma once

#include <vector>

#include "core/rewards/math/values/expression.h"

namespace quartet::math {

// What letters are is not said, but those that are inverted or transposed (A^{-1}B, x^T y) may be matrices: the factors
// of such a product are the same in their order alone (Kind::kApply). \frac{d}{dx} is applied to what follows.
ExpressionPtr ProductOf(std::vector<ExpressionPtr> factors);
// (AB)^{-1}, of which the same holds.
ExpressionPtr PowerOf(ExpressionPtr base, ExpressionPtr exponent);

}  // namespace quartet::math

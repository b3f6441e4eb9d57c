// Whether two scalars are the same: numbers, and expressions at points.
#pragma once

#include "core/rewards/math/values/expression.h"
#include "core/rewards/math/values/truth.h"

namespace quartet::math {

// Neither a sequence, a set nor a relation, nor with one in it.
bool IsScalar(const Expression& of);
// A scalar without variables and words.
bool IsConstant(const Expression& of);
bool IsInfinite(const Expression& of);

// Numbers: exactly where both are rational, else to some 300 digits; where one is written as a decimal number, to 6
// digits behind the point, or 3 that count.
//
// Expressions: at values of their variables of both signs, several sizes, and whole ones, where both sides are real in
// all their parts; where just one has an absolute value, also in that either is real where the other is. Where they are
// hardly ever real, as complex numbers. kUnknown: they are nowhere different, but have values at too few points.
Truth SameScalar(const Expression& a, const Expression& b);

// Whether a decimal number is about an expression, which is more than a number: to half a percent.
bool IsRoughly(const Expression& decimal, const Expression& of);

// Whether a / b is the same number wherever both have values, not 0; `positive`: and is greater than 0.
bool SameButForFactor(const ExpressionPtr& a, const ExpressionPtr& b, bool positive);

}  // namespace quartet::math

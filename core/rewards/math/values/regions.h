// Sets of real numbers: intervals, what inequalities say, and what unions make of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/rewards/math/values/expression.h"
#include "core/rewards/math/values/truth.h"

namespace quartet::math {

struct Interval {
  ExpressionPtr low, high;  // numbers, or infinite
  bool has_low, has_high;   // whether they are part of it
};

struct Region {
  std::vector<Interval> intervals;  // from left to right, no two of which touch
  std::string name;                 // of what is in it, where that is said: "x"
};

// Of intervals, \mathbb{R}, finite sets, their unions, sets without some numbers, inequalities and x \neq a: the
// numbers in it. Nothing where bounds are no numbers, or are not in order.
std::optional<Region> RegionOf(const Expression& of);
// Of several that "or" joins; that "and" joins.
std::optional<Region> UnionOf(const std::vector<ExpressionPtr>& parts);
std::optional<Region> IntersectionOf(const std::vector<ExpressionPtr>& parts);

Truth SameRegion(const Region& a, const Region& b);

// The interval that an inequality about a name says, of bounds of any kind; nothing of what is none.
std::optional<ExpressionPtr> IntervalOf(const Expression& of);

}  // namespace quartet::math

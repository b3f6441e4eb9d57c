#include "core/rewards/math/values/regions.h"

#include <algorithm>

#include "core/rewards/math/values/evaluate.h"
#include "core/rewards/math/values/inequalities.h"
#include "core/rewards/math/values/names.h"
#include "core/rewards/math/values/scalars.h"

namespace quartet::math {
namespace {

using Kind = Expression::Kind;

constexpr int kBits = 256;
constexpr size_t kMostIntervals = 200;

const ExpressionPtr& Infinity() {
  static const auto* infinity = new ExpressionPtr(Make(Kind::kConstant, "oo", {}));
  return *infinity;
}
const ExpressionPtr& MinusInfinity() {
  static const auto* minus = new ExpressionPtr(Make(Kind::kMultiply, "", {MakeNumber(-1), Infinity()}));
  return *minus;
}

// -1, 0 or 1; nothing where they are no real numbers or cannot be told apart.
std::optional<int> Order(const ExpressionPtr& a, const ExpressionPtr& b) {
  if (SameScalar(*a, *b) == Truth::kYes) return 0;
  const std::optional<Ball> ball_a = Enclose(*a, {}, kBits, Among::kReal),
                            ball_b = Enclose(*b, {}, kBits, Among::kReal);
  if (!ball_a.has_value() || !ball_b.has_value()) return std::nullopt;
  if (arb_lt(ball_a->real(), ball_b->real())) return -1;
  if (arb_gt(ball_a->real(), ball_b->real())) return 1;
  return std::nullopt;
}

bool IsInequality(const Expression& of) { return of.kind == Kind::kRelation && (of.name == "<" || of.name == "<="); }

Interval All() { return {MinusInfinity(), Infinity(), false, false}; }

// What is in it, as text: of inequalities about a symbol.
std::string NameIn(const Expression& of) {
  if (of.kind == Kind::kSymbol || of.kind == Kind::kText) return of.name;
  return "";
}

bool HasFunction(const Expression& of) {
  return of.kind == Kind::kFunction ||
         std::any_of(of.arguments.begin(), of.arguments.end(), [](const auto& a) { return HasFunction(*a); });
}

// Sorted and joined; nothing where that cannot be told.
bool Join(std::vector<Interval>* intervals) {
  if (intervals->size() > kMostIntervals) return false;
  bool known = true;
  const auto order = [&known](const ExpressionPtr& a, const ExpressionPtr& b) {
    const std::optional<int> which = Order(a, b);
    known &= which.has_value();
    return which.value_or(0);
  };
  // Insertion, which needs no strict order where orders are unknown.
  std::vector<Interval> sorted;
  for (const Interval& interval : *intervals) {
    const int within = order(interval.low, interval.high);
    if (within > 0 || (within == 0 && !(interval.has_low && interval.has_high))) return false;
    size_t at = sorted.size();
    while (at > 0) {
      const int which = order(sorted[at - 1].low, interval.low);
      if (which < 0 || (which == 0 && (sorted[at - 1].has_low || !interval.has_low))) break;
      --at;
    }
    sorted.insert(sorted.begin() + at, interval);
  }
  std::vector<Interval> joined;
  for (const Interval& interval : sorted) {
    if (!joined.empty()) {
      Interval& last = joined.back();
      const int gap = order(last.high, interval.low);
      if (gap > 0 || (gap == 0 && (last.has_high || interval.has_low))) {
        const int ends = order(last.high, interval.high);
        if (ends < 0) {
          last.high = interval.high;
          last.has_high = interval.has_high;
        } else if (ends == 0) {
          last.has_high |= interval.has_high;
        }
        continue;
      }
    }
    joined.push_back(interval);
  }
  *intervals = std::move(joined);
  return known;
}

// What is in both.
std::optional<Region> Common(const Region& a, const Region& b) {
  Region common;
  common.name = a.name;
  for (const Interval& one : a.intervals) {
    for (const Interval& other : b.intervals) {
      const auto low = Order(one.low, other.low), high = Order(one.high, other.high);
      if (!low.has_value() || !high.has_value()) return std::nullopt;
      Interval both = one;
      if (*low < 0) both.low = other.low;
      both.has_low = *low == 0 ? one.has_low && other.has_low : *low < 0 ? other.has_low : one.has_low;
      if (*high > 0) both.high = other.high;
      both.has_high = *high == 0 ? one.has_high && other.has_high : *high > 0 ? other.has_high : one.has_high;
      const auto within = Order(both.low, both.high);
      if (!within.has_value()) return std::nullopt;
      if (*within < 0 || (*within == 0 && both.has_low && both.has_high)) common.intervals.push_back(both);
    }
  }
  if (common.intervals.size() > kMostIntervals) return std::nullopt;
  return common;
}

// What is left of the real numbers. Intervals do not touch, so that each gap is one.
Region Complement(const Region& of) {
  Region rest;
  Interval gap = All();
  bool open = true;  // whether the gap has a lower end: none lies below -oo
  for (const Interval& interval : of.intervals) {
    gap.high = interval.low;
    gap.has_high = !interval.has_low && !IsInfinite(*interval.low);
    if (open && !(IsInfinite(*interval.low) && !interval.has_low)) rest.intervals.push_back(gap);
    gap = All();
    gap.low = interval.high;
    gap.has_low = !interval.has_high;
    open = !IsInfinite(*interval.high);
  }
  gap.high = Infinity();
  gap.has_high = false;
  if (open) rest.intervals.push_back(gap);
  return rest;
}

// Of real numbers but for these.
std::optional<Region> Without(Region of, const std::vector<ExpressionPtr>& numbers) {
  for (const ExpressionPtr& number : numbers) {
    if (!IsConstant(*number)) return std::nullopt;
    Region rest;
    rest.intervals = {{MinusInfinity(), number, false, false}, {number, Infinity(), false, false}};
    std::optional<Region> left = Common(of, rest);
    if (!left.has_value()) return std::nullopt;
    of = *std::move(left);
  }
  return of;
}

// Parts of one name.
std::optional<std::vector<Region>> RegionsOf(const std::vector<ExpressionPtr>& parts) {
  if (parts.size() > kMostIntervals) return std::nullopt;
  std::vector<Region> regions;
  for (const ExpressionPtr& part : parts) {
    std::optional<Region> region = RegionOf(*part);
    if (!region.has_value()) return std::nullopt;
    if (!regions.empty() && regions.front().name != region->name) return std::nullopt;
    regions.push_back(*std::move(region));
  }
  return regions;
}

}  // namespace

std::optional<ExpressionPtr> IntervalOf(const Expression& of) {
  const auto strict = [](const Expression& relation) { return relation.name == "<"; };
  if (of.kind == Kind::kRelation && of.name == "in") return of.arguments[1];
  if (IsInequality(of)) {
    const bool open = strict(of);
    if (IsName(*of.arguments[0]) && !IsName(*of.arguments[1])) {
      return Make(Kind::kSequence, open ? "()" : "(]", {MinusInfinity(), of.arguments[1]});
    }
    if (IsName(*of.arguments[1]) && !IsName(*of.arguments[0])) {
      return Make(Kind::kSequence, open ? "()" : "[)", {of.arguments[0], Infinity()});
    }
  }
  if (of.kind == Kind::kSequence && of.name == "chain" && of.arguments.size() == 2) {
    const Expression *low = of.arguments[0].get(), *high = of.arguments[1].get();
    if (!IsInequality(*low) || !IsInequality(*high)) return std::nullopt;
    const auto same_name = [&] {
      return IsName(*low->arguments[1]) && IsScalar(*low->arguments[1]) && IsScalar(*high->arguments[0]) &&
             SameScalar(*low->arguments[1], *high->arguments[0]) == Truth::kYes;
    };
    // a > x > b comes as x < a, b < x.
    if (!same_name()) std::swap(low, high);
    if (!same_name()) return std::nullopt;
    return Make(Kind::kSequence, std::string(strict(*low) ? "(" : "[") + (strict(*high) ? ")" : "]"),
                {low->arguments[0], high->arguments[1]});
  }
  return std::nullopt;
}

std::optional<Region> RegionOf(const Expression& of) {
  Region region;
  if (of.kind == Kind::kSymbol && of.name == "mathbb R") {
    region.intervals = {All()};
    return region;
  }
  if (of.kind == Kind::kText &&
      (of.name == "all real numbers" || of.name == "all reals" || of.name == "real numbers")) {
    region.intervals = {All()};
    return region;
  }
  if (of.kind == Kind::kUnion) return UnionOf(of.arguments);
  if (of.kind == Kind::kIntersection) return IntersectionOf(of.arguments);
  if (of.kind == Kind::kWithout) {
    const std::optional<Region> whole = RegionOf(*of.arguments[0]);
    if (!whole.has_value()) return std::nullopt;
    std::optional<Region> rest = whole;
    for (size_t i = 1; i < of.arguments.size() && rest.has_value(); ++i) {
      const std::optional<Region> less = RegionOf(*of.arguments[i]);
      if (!less.has_value()) return std::nullopt;
      rest = Common(*rest, Complement(*less));
    }
    return rest;
  }
  if (of.kind == Kind::kSet) {
    for (const ExpressionPtr& number : of.arguments) {
      if (!IsConstant(*number)) return std::nullopt;
      region.intervals.push_back({number, number, true, true});
    }
    if (!Join(&region.intervals)) return std::nullopt;
    return region;
  }
  if (of.kind == Kind::kRelation && of.name == "such") {
    // Which name it is about says nothing outside of the braces.
    std::optional<Region> said = RegionOf(*of.arguments[1]);
    if (!said.has_value() || said->name != of.arguments[0]->name) return std::nullopt;
    said->name.clear();
    return said;
  }
  if (of.kind == Kind::kSequence && of.name == "chain" && !IntervalOf(of).has_value()) {
    return IntersectionOf(of.arguments);
  }
  if (of.kind == Kind::kSequence && of.name == "all") return IntersectionOf(of.arguments);
  if (of.kind == Kind::kSequence && of.name == "either") return UnionOf(of.arguments);
  if (const std::optional<Solutions> solutions = Solve(of)) {
    region.name = solutions->name;
    const size_t bounds = solutions->bounds.size();
    for (size_t i = 0; i <= bounds; ++i) {
      Interval between = All();
      if (i > 0) between.low = solutions->bounds[i - 1];
      if (i < bounds) between.high = solutions->bounds[i];
      if (solutions->between[i]) region.intervals.push_back(between);
      if (i < bounds && solutions->at_bound[i]) region.intervals.push_back({between.high, between.high, true, true});
    }
    if (!Join(&region.intervals)) return std::nullopt;
    return region;
  }
  if (of.kind == Kind::kRelation && (of.name == "!=" || of.name == "in" || of.name == "notin")) {
    if (!IsName(*of.arguments[0])) return std::nullopt;
    region.intervals = {All()};
    std::optional<Region> said = of.name == "!=" ? Without(region, {of.arguments[1]}) : RegionOf(*of.arguments[1]);
    if (said.has_value() && of.name == "notin") said = Complement(*said);
    if (said.has_value()) said->name = NameIn(*of.arguments[0]);
    return said;
  }
  if (IsInequality(of)) {
    // |a| < b: -b < a < b. a < |b|: a < b or b < -a.
    const auto inside = [](const ExpressionPtr& side) {
      const bool only = side->kind == Kind::kFunction && side->name == "abs" && !HasFunction(*side->arguments[0]);
      return only ? side->arguments[0] : nullptr;
    };
    const auto minus = [](const ExpressionPtr& side) { return Make(Kind::kMultiply, "", {MakeNumber(-1), side}); };
    const auto less = [&](const ExpressionPtr& left, const ExpressionPtr& right) {
      return Make(Kind::kRelation, of.name, {left, right});
    };
    const ExpressionPtr &left = of.arguments[0], &right = of.arguments[1];
    if (const ExpressionPtr a = inside(left)) return IntersectionOf({less(a, right), less(minus(right), a)});
    if (const ExpressionPtr b = inside(right)) return UnionOf({less(left, b), less(b, minus(left))});
  }
  if (const std::optional<ExpressionPtr> interval = IntervalOf(of)) {
    std::optional<Region> said = RegionOf(**interval);
    if (!said.has_value()) return std::nullopt;
    const Expression& relation = of.kind == Kind::kSequence ? *of.arguments[0] : of;
    const Expression& side = *relation.arguments[IsName(*relation.arguments[0]) ? 0 : 1];
    said->name = NameIn(side);
    return said;
  }
  if (of.kind != Kind::kSequence || of.name.size() != 2 || of.arguments.size() != 2 || of.name == "::") {
    return std::nullopt;
  }
  if (!IsConstant(*of.arguments[0]) || !IsConstant(*of.arguments[1])) return std::nullopt;
  // Infinity is never inside, whatever the bracket.
  region.intervals = {{of.arguments[0], of.arguments[1], of.name[0] == '[' && !IsInfinite(*of.arguments[0]),
                       of.name[1] == ']' && !IsInfinite(*of.arguments[1])}};
  if (!Join(&region.intervals)) return std::nullopt;
  return region;
}

std::optional<Region> UnionOf(const std::vector<ExpressionPtr>& parts) {
  const auto regions = RegionsOf(parts);
  if (!regions.has_value()) return std::nullopt;
  Region all;
  for (const Region& region : *regions) {
    all.name = region.name;
    all.intervals.insert(all.intervals.end(), region.intervals.begin(), region.intervals.end());
  }
  if (!Join(&all.intervals)) return std::nullopt;
  return all;
}

std::optional<Region> IntersectionOf(const std::vector<ExpressionPtr>& parts) {
  const auto regions = RegionsOf(parts);
  if (!regions.has_value() || regions->empty()) return std::nullopt;
  std::optional<Region> common = regions->front();
  for (size_t i = 1; i < regions->size() && common.has_value(); ++i) common = Common(*common, (*regions)[i]);
  return common;
}

Truth SameRegion(const Region& a, const Region& b) {
  if (!a.name.empty() && !b.name.empty() && a.name != b.name) return Truth::kNo;
  if (a.intervals.size() != b.intervals.size()) return Truth::kNo;
  bool unknown = false;
  for (size_t i = 0; i < a.intervals.size(); ++i) {
    const Interval &one = a.intervals[i], &other = b.intervals[i];
    if (one.has_low != other.has_low || one.has_high != other.has_high) return Truth::kNo;
    for (const Truth same : {SameScalar(*one.low, *other.low), SameScalar(*one.high, *other.high)}) {
      if (same == Truth::kNo) return Truth::kNo;
      unknown |= same == Truth::kUnknown;
    }
  }
  return unknown ? Truth::kUnknown : Truth::kYes;
}

}  // namespace quartet::math

#include "core/rewards/math/values/scalars.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "core/rewards/math/values/evaluate.h"
#include "core/rewards/math/values/points.h"

namespace quartet::math {
namespace {

using Kind = Expression::Kind;

constexpr int kEnoughPoints = 3;
constexpr int kCloseBits = 256;
constexpr int kFewBits = 128;

template <typename Predicate>
bool Any(const Expression& of, Predicate predicate) {
  return predicate(of) ||
         std::any_of(of.arguments.begin(), of.arguments.end(), [&](const auto& a) { return Any(*a, predicate); });
}
bool HasDecimal(const Expression& of) {
  return Any(of, [](const Expression& e) { return e.decimal; });
}
bool HasAbsolute(const Expression& of) {
  return Any(of, [](const Expression& e) { return e.kind == Kind::kFunction && e.name == "abs"; });
}

// Whether a rounded number and another are as close as the digits say: 6 behind the point, or 3 that count.
bool Close(const Expression& a, const Expression& b) {
  const std::optional<Ball> ball_a = Enclose(a, {}, kCloseBits), ball_b = Enclose(b, {}, kCloseBits);
  if (!ball_a.has_value() || !ball_b.has_value() || ball_a->is_infinite() || ball_b->is_infinite()) return false;
  Ball difference, distance, allowed;
  acb_sub(difference.get(), ball_a->get(), ball_b->get(), kCloseBits);
  acb_abs(distance.real(), difference.get(), kCloseBits);
  acb_abs(allowed.real(), ball_b->get(), kCloseBits);
  arb_mul_ui(allowed.real(), allowed.real(), 1000, kCloseBits);
  if (!arb_is_zero(allowed.real()) && arf_cmp_si(arb_midref(allowed.real()), 1) > 0) arb_one(allowed.real());
  arb_div_ui(allowed.real(), allowed.real(), 2'000'000, kCloseBits);
  return arb_le(distance.real(), allowed.real());
}

enum class Domain { kUndefined, kComplex, kReal };
Domain DomainAt(const Expression& of, const Values& point) {
  if (Exact(of, point).has_value() || Enclose(of, point, kFewBits, Among::kReal).has_value()) return Domain::kReal;
  return Enclose(of, point, kFewBits).has_value() ? Domain::kComplex : Domain::kUndefined;
}

// As far as few bits tell.
Truth SeemsSame(const Expression& a, const Expression& b, const Values& point) {
  const auto exact_a = Exact(a, point), exact_b = Exact(b, point);
  if (exact_a.has_value() && exact_b.has_value()) return *exact_a == *exact_b ? Truth::kYes : Truth::kNo;
  const auto ball_a = Enclose(a, point, kFewBits), ball_b = Enclose(b, point, kFewBits);
  if (!ball_a.has_value() || !ball_b.has_value()) return Truth::kUnknown;
  if (ball_a->is_infinite() || ball_b->is_infinite()) return Truth::kUnknown;
  return acb_overlaps(ball_a->get(), ball_b->get()) ? Truth::kYes : Truth::kNo;
}

Truth SameFunction(const Expression& a, const Expression& b) {
  const Points points(a, b);
  // A domain that |...| makes larger is said with it.
  const bool domains_count = HasAbsolute(a) != HasAbsolute(b);
  int agreed = 0;
  for (int i = 0; i < points.count(); ++i) {
    const Values point = points.at(i);
    const Domain of_a = DomainAt(a, point), of_b = DomainAt(b, point);
    if (of_a == Domain::kReal && of_b == Domain::kReal) {
      const Truth same = agreed < kEnoughPoints ? SameNumber(a, b, point) : SeemsSame(a, b, point);
      if (same == Truth::kNo) return Truth::kNo;
      agreed += same == Truth::kYes;
    } else if (domains_count && of_a != Domain::kUndefined && of_b != Domain::kUndefined && of_a != of_b) {
      return Truth::kNo;
    }
  }
  if (agreed >= kEnoughPoints) return Truth::kYes;
  agreed = 0;
  for (int i = 0; i < Points::first_count() && agreed < kEnoughPoints; ++i) {
    const Truth same = SameNumber(a, b, points.at(i));
    if (same == Truth::kNo) return Truth::kNo;
    agreed += same == Truth::kYes;  // else not defined here: another point
  }
  return agreed >= kEnoughPoints ? Truth::kYes : Truth::kUnknown;
}

}  // namespace

bool IsScalar(const Expression& of) {
  return !Any(of, [](const Expression& e) {
    return e.kind == Kind::kSequence || e.kind == Kind::kSet || e.kind == Kind::kUnion || e.kind == Kind::kWithout ||
           e.kind == Kind::kIntersection || e.kind == Kind::kRelation;
  });
}

bool IsConstant(const Expression& of) { return IsScalar(of) && SymbolsOf(of, of).empty(); }

bool IsInfinite(const Expression& of) {
  const std::optional<Ball> value = Enclose(of, {}, kCloseBits);
  return value.has_value() && value->is_infinite();
}

Truth SameScalar(const Expression& a, const Expression& b) {
  if (!SymbolsOf(a, b).empty()) return SameFunction(a, b);
  const Truth same = SameNumber(a, b, {});
  return same != Truth::kYes && (HasDecimal(a) || HasDecimal(b)) && Close(a, b) ? Truth::kYes : same;
}

bool IsRoughly(const Expression& decimal, const Expression& of) {
  constexpr int kPart = 200;
  if (!HasDecimal(decimal) || of.kind == Kind::kNumber) return false;
  const auto ball_a = Enclose(of, {}, kFewBits), ball_b = Enclose(decimal, {}, kFewBits);
  if (!ball_a.has_value() || !ball_b.has_value()) return false;
  Ball difference, distance, size;
  acb_sub(difference.get(), ball_a->get(), ball_b->get(), kFewBits);
  acb_abs(distance.real(), difference.get(), kFewBits);
  acb_abs(size.real(), ball_a->get(), kFewBits);
  arb_mul_ui(distance.real(), distance.real(), kPart, kFewBits);
  return arb_le(distance.real(), size.real());
}

bool SameButForFactor(const ExpressionPtr& a, const ExpressionPtr& b, bool positive) {
  const Points points(*a, *b);
  const auto imaginary = [](const Expression& e) { return e.kind == Kind::kConstant && e.name == "i"; };
  const Among among = Any(*a, imaginary) || Any(*b, imaginary) ? Among::kComplex : Among::kReal;
  std::optional<Ball> ratio;
  int agreed = 0;
  for (int i = 0; i < points.count(); ++i) {
    const Values point = points.at(i);
    const std::optional<Ball> value_a = Enclose(*a, point, kCloseBits, among),
                              value_b = Enclose(*b, point, kCloseBits, among);
    if (!value_a.has_value() || !value_b.has_value() || acb_contains_zero(value_b->get())) continue;
    Ball here;
    acb_div(here.get(), value_a->get(), value_b->get(), kCloseBits);
    if (!acb_is_finite(here.get()) || acb_rel_accuracy_bits(here.get()) < kCloseBits / 4) continue;
    if (ratio.has_value() && !acb_overlaps(here.get(), ratio->get())) return false;
    ratio = here;
    ++agreed;
  }
  return agreed >= kEnoughPoints &&
         (positive ? ratio->is_real() && arb_is_positive(ratio->real()) : !acb_contains_zero(ratio->get()));
}

}  // namespace quartet::math

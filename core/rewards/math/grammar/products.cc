#include "core/rewards/math/grammar/products.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "core/rewards/math/values/scalars.h"

namespace quartet::math {
namespace {

using Kind = Expression::Kind;

bool IsCapital(const Expression& of) {
  return of.kind == Kind::kSymbol && absl::ascii_isupper(static_cast<unsigned char>(of.name[0]));
}

bool IsMinusOne(const Expression& of) { return of.kind == Kind::kNumber && of.number == -1; }
bool IsTransposition(const Expression& of) { return of.kind == Kind::kSymbol && of.name == "T"; }

// A^{-1}, A^T, x^T, (A^{-1})^T.
bool IsTurned(const Expression& of) {
  if (of.kind == Kind::kApply) return of.name == "matrices";
  if (of.kind != Kind::kPower) return false;
  const Expression &base = *of.arguments[0], &exponent = *of.arguments[1];
  if (IsMinusOne(exponent)) return IsCapital(base) || IsTurned(base);
  return IsTransposition(exponent) && (base.kind == Kind::kSymbol || IsTurned(base));
}

bool IsDerivative(const Expression& of) {
  if (of.kind != Kind::kApply || of.name != "derivative" || of.arguments.size() != 2) return false;
  const Expression& above = *of.arguments[0];
  const Expression& d = above.kind == Kind::kPower ? *above.arguments[0] : above;
  return d.kind == Kind::kSymbol;
}

ExpressionPtr Plain(std::vector<ExpressionPtr> factors) {
  return factors.size() == 1 ? factors[0] : Make(Kind::kMultiply, "", std::move(factors));
}

}  // namespace

ExpressionPtr ProductOf(std::vector<ExpressionPtr> factors) {
  const auto derivative =
      std::find_if(factors.begin(), factors.end(), [](const auto& factor) { return IsDerivative(*factor); });
  if (derivative != factors.end() && derivative + 1 != factors.end()) {
    std::vector<ExpressionPtr> applied = (*derivative)->arguments;
    applied.push_back(ProductOf({derivative + 1, factors.end()}));
    *derivative = Make(Kind::kApply, "derivative", std::move(applied));
    factors.erase(derivative + 1, factors.end());
  }
  if (factors.size() > 1 && std::any_of(factors.begin(), factors.end(), [](const auto& f) { return IsTurned(*f); })) {
    const auto others =
        std::stable_partition(factors.begin(), factors.end(), [](const auto& factor) { return IsConstant(*factor); });
    if (factors.end() - others > 1) {
      ExpressionPtr matrices = Make(Kind::kApply, "matrices", {others, factors.end()});
      factors.erase(others, factors.end());
      factors.push_back(std::move(matrices));
    }
  }
  return Plain(std::move(factors));
}

ExpressionPtr PowerOf(ExpressionPtr base, ExpressionPtr exponent) {
  if (base->kind == Kind::kMultiply && (IsMinusOne(*exponent) || IsTransposition(*exponent)) &&
      std::count_if(base->arguments.begin(), base->arguments.end(), [](const auto& f) { return IsCapital(*f); }) > 1) {
    base = Make(Kind::kApply, "matrices", base->arguments);
  }
  return Make(Kind::kPower, "", {std::move(base), std::move(exponent)});
}

}  // namespace quartet::math

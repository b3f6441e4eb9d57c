#include "core/rewards/math/values/names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "core/rewards/math/values/scalars.h"

namespace quartet::math {

bool IsName(const Expression& of) {
  using Kind = Expression::Kind;
  const auto capital = [](char c) { return absl::ascii_isupper(static_cast<unsigned char>(c)); };
  switch (of.kind) {
    case Kind::kSymbol:
    case Kind::kText:
    case Kind::kApply:
      return true;
    case Kind::kMultiply:
      if (!of.name.empty() && std::any_of(of.name.begin(), of.name.end(), capital)) return true;
      [[fallthrough]];
    case Kind::kDivide:
      return std::all_of(of.arguments.begin(), of.arguments.end(), [](const auto& a) { return IsName(*a); });
    case Kind::kUnion:
    case Kind::kIntersection:
    case Kind::kWithout:
      return std::all_of(of.arguments.begin(), of.arguments.end(), [](const auto& a) { return IsName(*a); });
    case Kind::kFunction: {  // |AB|, |A|, |\vec{a}|, |A \cup B|; |x| = 3 says two values
      if (of.name != "abs") return false;
      const Expression& inside = *of.arguments[0];
      return inside.kind == Kind::kSymbol ? capital(inside.name[0]) || inside.name.starts_with("vec ") : IsName(inside);
    }
    case Kind::kSequence:
      return of.name != "chain" &&
             std::all_of(of.arguments.begin(), of.arguments.end(), [](const auto& a) { return IsName(*a); });
    default:
      return false;
  }
}

std::optional<ExpressionPtr> ValueSaid(const Expression& of) {
  if (of.kind != Expression::Kind::kRelation || (of.name != "=" && of.name != "about")) return std::nullopt;
  const ExpressionPtr &left = of.arguments[0], &right = of.arguments[1];
  if (IsName(*left) || (IsConstant(*left) && IsConstant(*right))) return right;
  if (IsName(*right)) return left;
  // A^{-1}, A^T of a matrix.
  if (left->kind == Expression::Kind::kPower && IsName(*left->arguments[0]) && !IsScalar(*right)) return right;
  return std::nullopt;
}

}  // namespace quartet::math

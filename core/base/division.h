// Divisions of counts and sizes that leave no part out.
#pragma once

#include <concepts>
#include <type_traits>

namespace quartet {

// How many parts of `b` hold `a`: a / b, rounded up. a >= 0, b > 0; what a + b - 1 does not overflow.
template <std::integral A, std::integral B>
constexpr std::common_type_t<A, B> CeilDivide(A a, B b) {
  return (a + b - 1) / b;
}

// The least multiple that is at least `value`. As CeilDivide.
template <std::integral A, std::integral B>
constexpr std::common_type_t<A, B> RoundUp(A value, B multiple) {
  return CeilDivide(value, multiple) * multiple;
}

}  // namespace quartet

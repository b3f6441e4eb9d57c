// Mean and spread of numbers, and what of them is rounding.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

namespace quartet {

// What is the same but for rounding differs by less than this share of itself: rewards travel in fp32, and a model's
// values of equal answers differ in their last bits from one micro-batch to another.
inline constexpr double kRounding = 1e-6;

// Rewards are parts and sums of numbers of about 1. Where these cancel in fp32, inside of a reward function, up to 6e-8
// is left, which is as large as itself: of numbers below this size differences count as if they were of it.
inline constexpr double kLeastSize = 0.1;

// Whether `a` is above `b` by more than rounding.
inline bool IsAbove(double a, double b) { return a - b > kRounding * std::max({std::abs(a), std::abs(b), kLeastSize}); }

// Whether all are the same but for rounding; at least one.
inline bool AreEqual(std::span<const double> values) {
  const auto [least, most] = std::ranges::minmax(values);
  return !IsAbove(most, least);
}

// Of numbers that are not all the same the usual formulas. Of those that are, but for rounding, the spread is exactly
// 0, where rounding would leave a trace that a division could make large; and the mean is exactly that number, if it is
// one.
struct Moments {
  double mean = 0;
  double squares = 0;  // sum of squared differences to the mean
  double count = 0;

  double PopulationVariance() const { return count > 0 ? squares / count : 0; }
  double UnbiasedVariance() const { return count > 1 ? squares / (count - 1) : 0; }
};

inline Moments MomentsOf(std::span<const double> values) {
  Moments moments;
  if (values.empty()) return moments;
  moments.count = static_cast<double>(values.size());
  moments.mean = values.front();
  if (std::ranges::all_of(values, [&](double x) { return x == values.front(); })) return moments;
  moments.mean = std::accumulate(values.begin(), values.end(), 0.0) / moments.count;
  if (AreEqual(values)) return moments;
  for (double x : values) moments.squares += (x - moments.mean) * (x - moments.mean);
  return moments;
}

}  // namespace quartet

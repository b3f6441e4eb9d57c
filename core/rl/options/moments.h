// Mean and spread of numbers.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>

namespace quartet {

// Of numbers that are not all the same the usual formulas; of equal ones exactly (that number, 0), where rounding would
// leave a trace that a division could make large.
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
  for (double x : values) moments.squares += (x - moments.mean) * (x - moments.mean);
  return moments;
}

}  // namespace quartet

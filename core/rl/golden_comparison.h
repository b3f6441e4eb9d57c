// Comparison with golden arrays, for tests: every difference is checked, and the largest of each function and peer are
// printed at the end, as docs/algorithms.md shows them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace quartet {

// Of T's precision, relative to the largest of the golden numbers that are compared together.
template <typename T>
inline constexpr double kGoldenTolerance = std::is_same_v<T, double> ? 1e-9 : 1e-5;

class LargestDifferences {
 public:
  static LargestDifferences& Instance() {
    static LargestDifferences all;
    return all;
  }
  ~LargestDifferences() {
    for (const auto& [key, value] : largest_) {
      std::printf("largest difference | %s | %s | %s | %.1e |\n", key.function.c_str(), key.peer.c_str(),
                  key.is_double ? "fp64" : "fp32", value);
    }
  }
  void Add(const std::string& function, const std::string& peer, bool is_double, double difference) {
    double& largest = largest_[{function, peer, is_double}];
    largest = std::max(largest, difference);
  }

 private:
  struct Key {
    std::string function, peer;
    bool is_double = false;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, double> largest_;
};

// `ours` is `theirs`, within kGoldenTolerance of the largest of `theirs`, or of `scale` where that is more: that of the
// terms of a sum, which may cancel.
template <typename T>
void ExpectGolden(std::span<const T> ours, std::span<const double> theirs, const std::string& function,
                  const std::string& peer, double scale = 0) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (double x : theirs) scale = std::max(scale, std::abs(x));
  if (scale == 0) scale = 1;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double difference = std::abs(static_cast<double>(ours[i]) - theirs[i]) / scale;
    LargestDifferences::Instance().Add(function, peer, std::is_same_v<T, double>, difference);
    EXPECT_LE(difference, kGoldenTolerance<T>) << "entry " << i << ": " << ours[i] << ", golden " << theirs[i];
  }
}

}  // namespace quartet

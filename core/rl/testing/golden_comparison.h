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

// Printed when the test ends, as the table of docs/algorithms.md: fp64 / fp32 of each function and peer.
class LargestDifferences {
 public:
  static LargestDifferences& Instance() {
    static LargestDifferences all;
    return all;
  }
  ~LargestDifferences() {
    for (const auto& [function, by_peer] : largest_) {
      std::string row = "| " + function + " |";
      for (const char* peer : {"OpenRLHF", "TRL", "verl", "NeMo-RL", "transformers"}) {
        const auto found = by_peer.find(peer);
        row += found == by_peer.end() ? " |" : " " + found->second.Cell() + " |";
      }
      std::printf("%s\n", row.c_str());
    }
  }
  void Add(const std::string& function, const std::string& peer, bool is_double, double difference) {
    Largest& largest = largest_[function][peer];
    double& value = is_double ? largest.fp64 : largest.fp32;
    value = std::max(value, difference);
  }

 private:
  struct Largest {
    double fp64 = -1;
    double fp32 = -1;  // negative: not compared

    std::string Cell() const { return fp32 < 0 ? Text(fp64) : Text(fp64) + " / " + Text(fp32); }
    static std::string Text(double difference) {
      char text[16];
      std::snprintf(text, sizeof(text), difference == 0 ? "0" : "%.0e", difference);
      return text;
    }
  };
  std::map<std::string, std::map<std::string, Largest>> largest_;
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

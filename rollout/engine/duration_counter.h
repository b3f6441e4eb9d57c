// How long something took, counted by bounds.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "rollout/engine/engine_stats.pb.h"

namespace quartet {

// One thread.
class DurationCounter {
 public:
  // Seconds.
  static constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,   0.25,
                                         0.5,   1.0,    2.5,   5.0,  10.0,  25.0, 100.0, 1000.0};

  void Add(double seconds) {
    ++counts_[std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin()];
    seconds_ += seconds;
  }
  void WriteTo(DurationCounts* to) const {
    to->mutable_counts()->Assign(counts_.begin(), counts_.end());
    to->set_seconds(seconds_);
  }

 private:
  std::array<int64_t, kBounds.size() + 1> counts_ = {};
  double seconds_ = 0;
};

}  // namespace quartet

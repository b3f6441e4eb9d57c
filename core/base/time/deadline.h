// Until when something may take. LibTorch-free.
#pragma once

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace quartet {

// On this process's monotonic clock, which nobody sets. Between hosts goes what is left of it.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline Never() { return Deadline(Clock::time_point::max()); }
  static Deadline In(absl::Duration duration) {
    // Beyond what the clock can count is as good as never.
    if (duration > absl::Hours(24 * 365 * 100)) return Never();
    return Deadline(Clock::now() + absl::ToChronoNanoseconds(std::max(duration, absl::ZeroDuration())));
  }

  bool never() const { return time_ == Clock::time_point::max(); }
  // At least 0; infinite where it never comes.
  absl::Duration left() const {
    if (never()) return absl::InfiniteDuration();
    return std::max(absl::FromChrono(time_ - Clock::now()), absl::ZeroDuration());
  }
  bool passed() const { return Clock::now() >= time_; }
  Clock::time_point time() const { return time_; }

  friend auto operator<=>(const Deadline&, const Deadline&) = default;

 private:
  explicit Deadline(Clock::time_point time) : time_(time) {}
  Clock::time_point time_;
};

}  // namespace quartet

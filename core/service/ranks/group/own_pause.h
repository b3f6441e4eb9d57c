// Whether this process was stopped for a while.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "absl/time/time.h"

namespace quartet {

// A thread beats at an even pace for as long as the process runs. Not thread-safe.
class OwnPause {
 public:
  using Clock = std::chrono::steady_clock;

  // Between two beats, one every `beat`, a gap longer than `most` of them is a pause.
  OwnPause(absl::Duration beat, int most, std::function<Clock::time_point()> now = Clock::now)
      : longest_gap_(most * beat), most_(most), now_(std::move(now)) {}

  void Beat();
  // How long the process was stopped, if that goes on or ended fewer than `most` beats ago: others may have given it up
  // for it. 0 otherwise.
  absl::Duration Recent() const;

 private:
  absl::Duration SinceBeat() const;

  const absl::Duration longest_gap_;
  const int most_;
  const std::function<Clock::time_point()> now_;
  std::optional<Clock::time_point> beat_at_;  // the last one
  absl::Duration pause_ = absl::ZeroDuration();
  int beats_since_ = 0;
};

}  // namespace quartet

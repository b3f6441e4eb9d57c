// Whether this process was stopped for a while.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "absl/time/time.h"

namespace quartet {

// A thread beats at an even pace from its making on, for as long as the process runs. Not thread-safe.
class OwnPause {
 public:
  using Clock = std::chrono::steady_clock;

  // One beat every `beat`. Others give this process up after `patience` of them, be it of several stops: a gap longer
  // than half of that is a pause.
  OwnPause(absl::Duration beat, int patience, std::function<Clock::time_point()> now = Clock::now)
      : longest_gap_(patience * beat / 2), patience_(patience), now_(std::move(now)), beat_at_(now_()) {}

  // Whether a pause has ended since the last.
  bool Beat();
  // How long the process was stopped, if that goes on or ended fewer than `patience` beats ago: others may have given
  // it up for it. 0 otherwise.
  absl::Duration Recent() const;

 private:
  absl::Duration SinceBeat() const { return absl::FromChrono(now_() - beat_at_); }

  const absl::Duration longest_gap_;
  const int patience_;
  const std::function<Clock::time_point()> now_;
  Clock::time_point beat_at_;  // the last one, or the making
  absl::Duration pause_ = absl::ZeroDuration();
  int beats_since_ = 0;
};

}  // namespace quartet

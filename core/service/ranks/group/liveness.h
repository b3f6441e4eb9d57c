// Which ranks say nothing any more, and what has become of them.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace quartet {

// Counts heartbeats of this rank: one that was stopped itself has not waited meanwhile, and may be the one that the
// others have given up. Not thread-safe.
class Liveness {
 public:
  using Clock = std::chrono::steady_clock;

  Liveness(int ranks, absl::Duration heartbeat, std::function<Clock::time_point()> now = Clock::now)
      : heartbeat_(heartbeat), now_(std::move(now)), silent_(ranks), heartbeat_at_(now_()) {}

  // Once every `heartbeat`, from the making on, for as long as this process runs.
  void Heartbeat();
  void Heard(int rank) { silent_[rank] = 0; }
  // Whether it has said nothing for so long that it is given up.
  bool IsTooLong(int rank) const;
  // Of a rank that is given up, or whose lane has ended: "is gone" only where this one was not stopped.
  std::string FateOf(int rank) const;

 private:
  absl::Duration OwnPause() const;

  const absl::Duration heartbeat_;
  const std::function<Clock::time_point()> now_;
  std::vector<int> silent_;         // heartbeats, by rank
  Clock::time_point heartbeat_at_;  // the last one, or the making
  absl::Duration pause_;            // this process's last
  int heartbeats_since_pause_ = 0;
};

}  // namespace quartet

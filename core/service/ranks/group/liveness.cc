#include "core/service/ranks/group/liveness.h"

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

// It comes before the end of gRPC's patience with the connection, over which it is said.
constexpr int kMostSilentHeartbeats = 25;
// Between two heartbeats. Less than what others give a rank up for: they may have heard nothing between two stops.
constexpr int kPauseHeartbeats = kMostSilentHeartbeats / 2;

}  // namespace

void Liveness::Heartbeat() {
  const absl::Duration gap = absl::FromChrono(now_() - heartbeat_at_);
  if (gap > kPauseHeartbeats * heartbeat_) {
    pause_ = gap;
    heartbeats_since_pause_ = 0;
    silent_.assign(silent_.size(), 0);  // what came meanwhile is yet to be read
  }
  ++heartbeats_since_pause_;
  for (int& heartbeats : silent_) ++heartbeats;
  heartbeat_at_ = now_();
}

bool Liveness::IsTooLong(int rank) const { return silent_[rank] > kMostSilentHeartbeats; }

// How long this process was stopped, if that goes on, or ended so lately that others may have given it up for it.
absl::Duration Liveness::OwnPause() const {
  if (const absl::Duration gap = absl::FromChrono(now_() - heartbeat_at_); gap > kPauseHeartbeats * heartbeat_)
    return gap;
  return heartbeats_since_pause_ <= kMostSilentHeartbeats ? pause_ : absl::ZeroDuration();
}

std::string Liveness::FateOf(int rank) const {
  if (IsTooLong(rank)) {
    return absl::StrCat("has not answered for ", absl::FormatDuration(kMostSilentHeartbeats * heartbeat_),
                        ": it is stopped, or its host is gone");
  }
  // What others said of this rank as they ended may be lost with their ends.
  const absl::Duration pause = OwnPause();
  if (pause == absl::ZeroDuration()) return "is gone";
  return absl::StrCat("has ended while this rank did not run, for ",
                      absl::FormatDuration(absl::Trunc(pause, absl::Milliseconds(100))), ": this one was stopped");
}

}  // namespace quartet

#include "core/service/ranks/group/silence.h"

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

// It comes before the end of gRPC's patience with the connection, over which it is said.
constexpr int kMostSilentBeats = 25;
// Between two beats. Less than what others give a rank up for: they may have heard nothing between two stops.
constexpr int kPauseBeats = kMostSilentBeats / 2;

}  // namespace

void Silence::Beat() {
  const absl::Duration gap = absl::FromChrono(now_() - beat_at_);
  if (gap > kPauseBeats * beat_) {
    pause_ = gap;
    beats_since_pause_ = 0;
    silent_.assign(silent_.size(), 0);  // what came meanwhile is yet to be read
  }
  ++beats_since_pause_;
  for (int& beats : silent_) ++beats;
  beat_at_ = now_();
}

bool Silence::IsTooLong(int rank) const { return silent_[rank] > kMostSilentBeats; }

// How long this process was stopped, if that goes on, or ended so lately that others may have given it up for it.
absl::Duration Silence::OwnPause() const {
  if (const absl::Duration gap = absl::FromChrono(now_() - beat_at_); gap > kPauseBeats * beat_) return gap;
  return beats_since_pause_ <= kMostSilentBeats ? pause_ : absl::ZeroDuration();
}

std::string Silence::FateOf(int rank) const {
  if (IsTooLong(rank)) {
    return absl::StrCat("has not answered for ", absl::FormatDuration(kMostSilentBeats * beat_),
                        ": it is stopped, or its host is gone");
  }
  // What others said of this rank as they ended may be lost with their ends.
  const absl::Duration pause = OwnPause();
  if (pause == absl::ZeroDuration()) return "is gone";
  return absl::StrCat("has ended while this rank did not run, for ",
                      absl::FormatDuration(absl::Trunc(pause, absl::Milliseconds(100))), ": this one was stopped");
}

}  // namespace quartet

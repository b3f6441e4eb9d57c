#include "core/service/ranks/group/own_pause.h"

namespace quartet {

bool OwnPause::Beat() {
  const absl::Duration gap = SinceBeat();
  const bool paused = gap > longest_gap_;
  if (paused) {
    pause_ = gap;
    beats_since_ = 0;
  }
  ++beats_since_;
  beat_at_ = now_();
  return paused;
}

absl::Duration OwnPause::Recent() const {
  if (const absl::Duration gap = SinceBeat(); gap > longest_gap_) return gap;
  return beats_since_ < patience_ ? pause_ : absl::ZeroDuration();
}

}  // namespace quartet

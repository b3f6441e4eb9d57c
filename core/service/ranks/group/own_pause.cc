#include "core/service/ranks/group/own_pause.h"

namespace quartet {

absl::Duration OwnPause::SinceBeat() const {
  return beat_at_.has_value() ? absl::FromChrono(now_() - *beat_at_) : absl::ZeroDuration();
}

void OwnPause::Beat() {
  if (const absl::Duration gap = SinceBeat(); gap > longest_gap_) {
    pause_ = gap;
    beats_since_ = 0;
  }
  ++beats_since_;
  beat_at_ = now_();
}

absl::Duration OwnPause::Recent() const {
  if (const absl::Duration gap = SinceBeat(); gap > longest_gap_) return gap;
  return beats_since_ < most_ ? pause_ : absl::ZeroDuration();
}

}  // namespace quartet

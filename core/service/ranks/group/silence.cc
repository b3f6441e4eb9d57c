#include "core/service/ranks/group/silence.h"

#include "absl/strings/str_cat.h"

namespace quartet {

void Silence::Beat() {
  const bool paused = pause_.Beat();
  for (int& beats : silent_) beats = paused ? 1 : beats + 1;  // what came meanwhile is yet to be read
}

std::string Silence::FateOf(int rank) const {
  if (IsTooLong(rank)) {
    return absl::StrCat("has not answered for ", absl::FormatDuration(kMostBeats * beat_),
                        ": it is stopped, or its host is gone");
  }
  // What others said of this rank as they ended may be lost with their ends.
  const absl::Duration pause = pause_.Recent();
  if (pause == absl::ZeroDuration()) return "is gone";
  return absl::StrCat("has ended while this rank did not run, for ",
                      absl::FormatDuration(absl::Trunc(pause, absl::Milliseconds(100))), ": this one was stopped");
}

}  // namespace quartet

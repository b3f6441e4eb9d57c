// Which ranks say nothing any more, and what has become of them.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/service/ranks/group/own_pause.h"

namespace quartet {

// Counts beats of this rank: one that was stopped itself has not waited meanwhile. Not thread-safe.
class Silence {
 public:
  Silence(int ranks, absl::Duration beat) : beat_(beat), silent_(ranks), pause_(beat, kMostBeats + 2) {}

  // From the making on, once every `beat`.
  void Beat();
  void Heard(int rank) { silent_[rank] = 0; }
  // Whether it has said nothing for so long that it is given up.
  bool IsTooLong(int rank) const { return silent_[rank] > kMostBeats; }
  // Of a rank that is given up, or whose lane has ended: "is gone", unless this one may be the one that was given up.
  std::string FateOf(int rank) const;

 private:
  // Comes before the end of gRPC's patience with the connection, over which it is said.
  static constexpr int kMostBeats = 25;

  const absl::Duration beat_;
  std::vector<int> silent_;  // beats, by rank
  OwnPause pause_;
};

}  // namespace quartet

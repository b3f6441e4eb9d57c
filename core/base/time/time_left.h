// When something will be done, for people.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace quartet {

// Of a run of steps. One thread.
class TimeLeft {
 public:
  // A further step has taken so long. The first, in which everything is done for the first time, is not counted.
  void AddStep(absl::Duration step);

  // What `steps` more will take if they take as long as the latest ten on average; nothing before the second step.
  std::optional<absl::Duration> Of(int64_t steps) const;
  // The same for people, after `separator`; "" where nothing is known, and of no steps.
  std::string Text(const std::string& separator, int64_t steps) const;

 private:
  bool has_begun_ = false;
  std::deque<absl::Duration> latest_;
};

// What is left of `total` parts at the rate of the first `done`, which took `spent`; "" where that says nothing yet: in
// the first two seconds, and of fewer than ten parts, which are not alike enough.
std::string TimeLeftAtRate(int64_t done, int64_t total, absl::Duration spent);

// "4 d 03 h left", "2 h 05 m left", "3 m 20 s left", "45 s left".
std::string FormatTimeLeft(absl::Duration left);

}  // namespace quartet

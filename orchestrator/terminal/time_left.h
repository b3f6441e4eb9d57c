// When a run of steps will be done.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace quartet {

// One thread.
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

// "4 d 03 h left", "2 h 05 m left", "3 m 20 s left", "45 s left".
std::string FormatTimeLeft(absl::Duration left);

}  // namespace quartet

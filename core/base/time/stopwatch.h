// How long something takes.
#pragma once

#include <chrono>

namespace quartet {

// From when it is made, on this process's monotonic clock. Thread safe.
class Stopwatch {
 public:
  double Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace quartet

// Waiting for others by the time in which this process runs. LibTorch-free.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "core/base/time/deadline.h"

namespace quartet {

// As changed.wait_until. But where this process was stopped for longer than a second, time passed in which it could
// hear nobody, and it has not yet read what came meanwhile: false only once it has run for a second since.
template <typename Condition>
bool WaitWhileRunning(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, const Deadline& deadline,
                      Condition condition) {
  constexpr std::chrono::milliseconds kSlice{500}, kStop{1000};
  auto until = deadline.time();
  for (auto now = Deadline::Clock::now(); !condition(); now = Deadline::Clock::now()) {
    if (now >= until) return false;
    const auto end = std::min(until, now + kSlice);
    if (changed.wait_until(lock, end, condition)) return true;
    if (now = Deadline::Clock::now(); now - end > kStop) until = std::max(until, now + kStop);
  }
  return true;
}

}  // namespace quartet

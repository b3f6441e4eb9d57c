// Calls at the same time, and how long they take.
#pragma once

#include <chrono>
#include <future>
#include <utility>

namespace quartet {

class Stopwatch {
 public:
  double Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
};

// Runs `work` on a thread of its own; the seconds it took are in *seconds when the future is ready.
template <typename Work>
auto SideBySide(double* seconds, Work work) {
  return std::async(std::launch::async, [seconds, work = std::move(work)] {
    const Stopwatch stopwatch;
    auto result = work();
    *seconds = stopwatch.Seconds();
    return result;
  });
}

}  // namespace quartet

// Calls at the same time, and how long they take.
#pragma once

#include <future>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quartet {

class Stopwatch {
 public:
  double Seconds() const { return absl::ToDoubleSeconds(absl::Now() - start_); }

 private:
  absl::Time start_ = absl::Now();
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

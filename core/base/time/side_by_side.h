// Calls at the same time, and how long they take.
#pragma once

#include <future>
#include <utility>

#include "core/base/time/stopwatch.h"

namespace quartet {

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

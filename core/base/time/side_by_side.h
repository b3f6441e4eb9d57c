// Calls at the same time, or one after the other, and how long they take.
#pragma once

#include <future>
#include <utility>

#include "core/base/time/stopwatch.h"

namespace quartet {

// Runs `work` on a thread of its own, or, where `how` is std::launch::deferred, on the caller's as soon as the future
// is asked for what comes of it; the seconds it took are in *seconds when the future is ready.
template <typename Work>
auto SideBySide(double* seconds, Work work, std::launch how = std::launch::async) {
  return std::async(how, [seconds, work = std::move(work)] {
    const Stopwatch stopwatch;
    auto result = work();
    *seconds = stopwatch.Seconds();
    return result;
  });
}

}  // namespace quartet

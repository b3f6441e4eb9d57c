// Calls at the same time, or one after the other, and how long they take.
#pragma once

#include <future>
#include <utility>

#include "core/base/time/stopwatch.h"

namespace quartet {

// Runs `work` on a thread of its own, or, `in_turn`, on the caller's as soon as the future is asked for what comes of
// it; the seconds it took are in *seconds when the future is ready.
template <typename Work>
auto SideBySide(double* seconds, Work work, bool in_turn = false) {
  return std::async(in_turn ? std::launch::deferred : std::launch::async, [seconds, work = std::move(work)] {
    const Stopwatch stopwatch;
    auto result = work();
    *seconds = stopwatch.Seconds();
    return result;
  });
}

}  // namespace quartet

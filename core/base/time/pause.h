// Waiting on a thread that may be asked to end.
#pragma once

#include <condition_variable>
#include <mutex>
#include <stop_token>

#include "absl/time/time.h"

namespace quartet {

// True once `duration` has passed; false, at once, where `stop` is requested before. Thread safe.
inline bool PauseFor(const std::stop_token& stop, absl::Duration duration) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, absl::ToChronoMilliseconds(absl::Ceil(duration, absl::Milliseconds(1))),
                 [] { return false; });
  return !stop.stop_requested();
}

}  // namespace quartet

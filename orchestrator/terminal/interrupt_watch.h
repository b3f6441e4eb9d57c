// Ctrl-C and SIGTERM end a run in good order.
#pragma once

#include <atomic>
#include <thread>

#include "core/service/process/stop_signal.h"
#include "orchestrator/clients/cancellation.h"

namespace quartet {

// Made in main before any thread; cancels the run with CANCELLED at the first SIGINT or SIGTERM.
class InterruptWatch {
 public:
  // `cancellation` outlives it.
  explicit InterruptWatch(Cancellation* cancellation);
  ~InterruptWatch();

 private:
  StopSignal signal_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace quartet

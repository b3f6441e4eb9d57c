// Ctrl-C, SIGTERM and SIGHUP end a run in good order, and a second one at once.
#pragma once

#include <atomic>
#include <stop_token>
#include <thread>

#include "core/cancellation/cancellation.h"
#include "core/service/process/stop_signal.h"

namespace quartet {

// Made in main before any thread; at the first SIGINT, SIGTERM or SIGHUP (but where that is ignored, as under nohup) it
// asks the run to end, where it has promised to, else, and at the signal after that, cancels it with CANCELLED. The
// next kills the groups of its PipedProcesses and ends the program with its exit code; services that it has started end
// by themselves then, as their parent is gone. A second SIGHUP is none: a terminal that is closed sends several.
class InterruptWatch {
 public:
  // `cancellation` outlives it.
  explicit InterruptWatch(Cancellation* cancellation);

  // What a program ends with that was told to: 128 and the number of the signal that came last, so 130, 143 or 129
  // after SIGINT, SIGTERM or SIGHUP. 0: none has come. Thread safe.
  int exit_code() const { return exit_code_; }

 private:
  void Watch(Cancellation* cancellation, const std::stop_token& stop);

  StopSignal signal_;
  std::atomic<int> exit_code_{0};
  std::jthread thread_;
};

}  // namespace quartet

#include "core/terminal/interrupt_watch.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/service/process/piped_process.h"

namespace quartet {

InterruptWatch::InterruptWatch(Cancellation* cancellation)
    : thread_([this, cancellation](const std::stop_token& stop) { Watch(cancellation, stop); }) {}

void InterruptWatch::Watch(Cancellation* cancellation, const std::stop_token& stop) {
  bool cancelled = false, hung_up = false;
  while (!stop.stop_requested()) {
    const std::optional<std::string> reason = signal_.Wait(absl::Milliseconds(100));
    if (!reason.has_value()) continue;
    // Of a terminal that is closed it comes from the kernel and from the shell: more of them say nothing new.
    if (*reason == "SIGHUP" && std::exchange(hung_up, true)) continue;
    const int number = *reason == "SIGINT"    ? SIGINT
                       : *reason == "SIGTERM" ? SIGTERM
                       : *reason == "SIGHUP"  ? SIGHUP
                                              : 0;  // no signal: what does not come twice
    if (number != 0) exit_code_ = 128 + number;
    if (cancelled) {
      std::fprintf(stderr, "\nended at once by a second signal, %s\n", reason->c_str());
      PipedProcess::KillAll();
      _exit(exit_code_);
    }
    const absl::Status stopped = absl::CancelledError(absl::StrCat("stopped by ", *reason));
    if (number != 0 && cancellation->End(stopped)) {
      std::fprintf(stderr, "\n%s: the run ends after the step under way, with a checkpoint; a second one ends it now\n",
                   reason->c_str());
      continue;
    }
    cancelled = true;
    cancellation->Cancel(stopped);
    if (number == 0) return;
    std::fprintf(stderr, "\n%s: the run and its services are ending; one more ends at once\n", reason->c_str());
  }
}

}  // namespace quartet

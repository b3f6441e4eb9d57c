#include "orchestrator/terminal/interrupt_watch.h"

#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace quartet {

InterruptWatch::InterruptWatch(Cancellation* cancellation) : thread_([this, cancellation] { Watch(cancellation); }) {}

void InterruptWatch::Watch(Cancellation* cancellation) {
  bool cancelled = false;
  while (!stopping_) {
    const std::optional<std::string> reason = signal_.Wait(absl::Milliseconds(100));
    if (!reason.has_value()) continue;
    if (cancelled) {
      std::fprintf(stderr, "\nended at once by a second signal, %s\n", reason->c_str());
      _exit(130);
    }
    const absl::Status stopped = absl::CancelledError(absl::StrCat("stopped by ", *reason));
    if (*reason == "SIGTERM" && cancellation->End(stopped)) {
      std::fprintf(stderr,
                   "\nSIGTERM: the run ends after the step under way, with a checkpoint; a second one ends it now\n");
      continue;
    }
    cancelled = true;
    cancellation->Cancel(stopped);
    if (*reason != "SIGINT" && *reason != "SIGTERM") return;  // what does not come twice
    std::fprintf(stderr, "\n%s: the run and its services are ending; a second one ends at once\n", reason->c_str());
  }
}

InterruptWatch::~InterruptWatch() {
  stopping_ = true;
  thread_.join();
}

}  // namespace quartet

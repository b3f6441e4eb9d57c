#include "orchestrator/terminal/interrupt_watch.h"

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace quartet {

InterruptWatch::InterruptWatch(Cancellation* cancellation)
    : thread_([this, cancellation] {
        while (!stopping_) {
          if (const std::optional<std::string> reason = signal_.Wait(absl::Milliseconds(100)); reason.has_value()) {
            cancellation->Cancel(absl::CancelledError(absl::StrCat("stopped by ", *reason)));
            return;
          }
        }
      }) {}

InterruptWatch::~InterruptWatch() {
  stopping_ = true;
  thread_.join();
}

}  // namespace quartet

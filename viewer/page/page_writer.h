// Keeps the page of a run up to date while it goes on.
#pragma once

#include <stop_token>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quartet {

// Writes it on a thread of its own, which nobody waits for: at first, every `interval` (of a long run more rarely, so
// that it costs next to nothing), and for the last time when it ends. What goes wrong is said once, in the log, and
// ends nothing.
class PageWriter {
 public:
  explicit PageWriter(const std::string& run_dir, absl::Duration interval = absl::Seconds(30));
  PageWriter(const PageWriter&) = delete;
  PageWriter& operator=(const PageWriter&) = delete;

  // Ends it, as its destructor does. Why the page that there is now is not the last one, where it is not.
  absl::Status End();

 private:
  void Run(const std::string& run_dir, absl::Duration interval, const std::stop_token& stop);

  absl::Status written_;  // for the last time; for others once the thread has ended
  std::jthread thread_;
};

}  // namespace quartet

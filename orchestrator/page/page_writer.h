// Keeps the page of a run up to date while it goes on.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/time.h"

namespace quartet {

// Writes it on a thread of its own, which nobody waits for: at first, every `interval` (of a long run more rarely, so
// that it costs next to nothing), and for the last time when it is destroyed. What goes wrong is said once, in the log,
// and ends nothing.
class PageWriter {
 public:
  explicit PageWriter(const std::string& run_dir, absl::Duration interval = absl::Seconds(30));
  ~PageWriter();
  PageWriter(const PageWriter&) = delete;
  PageWriter& operator=(const PageWriter&) = delete;

 private:
  void Run(const std::string& run_dir, absl::Duration interval);

  std::mutex mutex_;
  std::condition_variable ends_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace quartet

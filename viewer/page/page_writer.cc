#include "viewer/page/page_writer.h"

#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/pause.h"
#include "core/base/time/stopwatch.h"
#include "core/errors/exceptions.h"
#include "viewer/page/run_page.h"

namespace quartet {
namespace {

// The page takes at most one part in so many of the thread's time.
constexpr int kPauses = 200;

}  // namespace

PageWriter::PageWriter(const std::string& run_dir, absl::Duration interval)
    : thread_([this, run_dir, interval](const std::stop_token& stop) { Run(run_dir, interval, stop); }) {}

absl::Status PageWriter::End() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  return written_;
}

void PageWriter::Run(const std::string& run_dir, absl::Duration interval, const std::stop_token& stop) {
  RunPage page(run_dir);
  bool said = false;
  for (bool last = false;;) {
    const Stopwatch writing;
    written_ = CatchAll([&]() -> absl::Status {
      QUARTET_RETURN_IF_ERROR(page.Read());
      return page.Write();
    });
    if (!written_.ok() && !said) {
      QUARTET_LOG(kWarning) << "the run page cannot be written: " << written_;
      said = true;
    }
    if (last) return;
    last = !PauseFor(stop, std::max(interval, kPauses * absl::Seconds(writing.Seconds())));
  }
}

}  // namespace quartet

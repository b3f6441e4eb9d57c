#include "viewer/page/page_writer.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "core/base/deadline.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/errors/exceptions.h"
#include "viewer/page/run_page.h"

namespace quartet {
namespace {

// The page takes at most one part in so many of the thread's time.
constexpr int kPauses = 200;

}  // namespace

PageWriter::PageWriter(const std::string& run_dir, absl::Duration interval)
    : thread_([this, run_dir, interval] { Run(run_dir, interval); }) {}

PageWriter::~PageWriter() { End().IgnoreError(); }

absl::Status PageWriter::End() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ends_.notify_all();
  if (thread_.joinable()) thread_.join();
  return written_;
}

void PageWriter::Run(const std::string& run_dir, absl::Duration interval) {
  RunPage page(run_dir);
  bool said = false;
  for (bool last = false;;) {
    const Deadline::Clock::time_point begin = Deadline::Clock::now();
    written_ = CatchAll([&]() -> absl::Status {
      QUARTET_RETURN_IF_ERROR(page.Read());
      return page.Write();
    });
    if (!written_.ok() && !said) {
      QUARTET_LOG(kWarning) << "the run page cannot be written: " << written_;
      said = true;
    }
    if (last) return;
    const absl::Duration pause = std::max(interval, kPauses * absl::FromChrono(Deadline::Clock::now() - begin));
    std::unique_lock lock(mutex_);
    last = ends_.wait_for(lock, absl::ToChronoMilliseconds(pause), [this] { return ending_; });
  }
}

}  // namespace quartet

#include "orchestrator/tracing/step_trace.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/trace.h"
#include "orchestrator/session/warning.h"

namespace quartet {
namespace {

constexpr char kOwnName[] = "orchestrator";
constexpr int kNoRank = -1;

// Writes a JSON array whose elements come as lines with a comma behind each.
class ArrayFile {
 public:
  explicit ArrayFile(std::FILE* file) : file_(file) {}
  absl::Status Append(const std::string& lines) {
    constexpr absl::string_view kEnd = ",\n";
    if (!absl::EndsWith(lines, kEnd)) {
      return lines.empty() ? absl::OkStatus() : absl::InternalError("events do not end with a comma");
    }
    QUARTET_RETURN_IF_ERROR(Write(empty_ ? "[\n" : kEnd));
    empty_ = false;
    return Write(absl::string_view(lines).substr(0, lines.size() - kEnd.size()));
  }
  absl::Status End() { return Write(empty_ ? "[]\n" : "\n]\n"); }

 private:
  absl::Status Write(absl::string_view text) {
    if (fwrite(text.data(), 1, text.size(), file_) == text.size()) return absl::OkStatus();
    return absl::DataLossError(std::strerror(errno));
  }

  std::FILE* const file_;
  bool empty_ = true;
};

}  // namespace

StepTrace::StepTrace(const RunConfig& config, int64_t first, int64_t steps, std::vector<ServiceClient*> services,
                     RunFolder& folder, TerminalView& view)
    : services_(std::move(services)), folder_(folder), view_(view) {
  const std::string& text = config.train().trace_steps();
  if (text.empty()) return;
  const absl::StatusOr<StepRange> range = ParseStepRange("train.trace_steps", text);
  QUARTET_CHECK(range.ok()) << range.status();
  if (range->first < steps && range->last >= first) {
    steps_ = StepRange{.first = range->first, .last = std::min(range->last, steps - 1)};
  } else {
    Warn(-1, absl::StrCat("train.trace_steps is ", text, ", and the run makes the steps from ", first, " to ",
                          steps - 1, ": nothing is traced"));
  }
}

StepTrace::~StepTrace() {
  if (first_.has_value()) Write(step_);
}

void StepTrace::BeginStep(int64_t step) {
  if (!steps_.has_value() || !steps_->contains(step)) return;
  if (!first_.has_value()) Start(step);
  step_ = step;
  step_start_ = TraceNow();
}

void StepTrace::EndStep(int64_t step) {
  if (!first_.has_value()) return;
  TraceSpent("", absl::StrCat("step ", step), step_start_, TraceNow());
  if (step == steps_->last) Write(step);
}

void StepTrace::Start(int64_t step) {
  const int64_t origin = absl::GetCurrentTimeNanos();
  if (absl::Status s = StartTraceInMemory(kOwnName, kNoRank, origin); !s.ok()) {
    Warn(step, absl::StrCat("the steps are not traced: ", std::string(s.message())));
    steps_.reset();
    return;
  }
  first_ = step;
  for (ServiceClient* service : services_) {
    if (absl::Status s = service->StartTrace(origin); s.ok()) {
      recording_.push_back(service);
    } else {
      Warn(step,
           absl::StrCat("the trace of the steps is without the ", service->service(), ": ", std::string(s.message())));
    }
  }
}

void StepTrace::Write(int64_t last) {
  const int64_t first = *std::exchange(first_, std::nullopt);
  const std::string name = absl::StrCat("trace_", first, first == last ? "" : absl::StrCat("-", last), ".json");
  const std::string path = absl::StrCat(folder_.path(), "/", name), unfinished = path + ".tmp";
  absl::Status written;
  if (std::FILE* file = fopen(unfinished.c_str(), "we"); file == nullptr) {
    written = absl::UnavailableError(std::strerror(errno));
  } else {
    written = WriteTo(file, last);
    if (fclose(file) != 0 && written.ok()) written = absl::DataLossError(std::strerror(errno));
    if (written.ok() && rename(unfinished.c_str(), path.c_str()) != 0) {
      written = absl::UnavailableError(std::strerror(errno));
    }
  }
  recording_.clear();
  if (written.ok()) {
    view_.Print(absl::StrCat("trace: ", path, " (https://ui.perfetto.dev opens it)"));
    return;
  }
  unlink(unfinished.c_str());
  Warn(last, absl::StrCat("no trace of the steps: ", path, ": ", std::string(written.message())));
}

absl::Status StepTrace::WriteTo(std::FILE* file, int64_t last) {
  ArrayFile array(file);
  QUARTET_ASSIGN_OR_RETURN(const RecordedTrace own, ::quartet::TakeTrace());
  QUARTET_RETURN_IF_ERROR(array.Append(own.events));
  int64_t dropped = own.dropped;
  for (ServiceClient* service : recording_) {
    absl::Status appended;
    const absl::StatusOr<int64_t> taken = service->TakeTrace([&](const std::string& events) {
      appended = array.Append(events);
      return appended;
    });
    QUARTET_RETURN_IF_ERROR(appended);
    if (taken.ok()) {
      dropped += *taken;
    } else {
      Warn(last, absl::StrCat("the trace of the steps is without all of the ", service->service(), ": ",
                              std::string(taken.status().message())));
    }
  }
  if (dropped > 0) {
    Warn(last,
         absl::StrCat("the trace of the steps is without ", dropped, " spans, for which there was no room in the ",
                      kMaxRecordedBytes >> 20, " MiB of their ranks; trace fewer steps at once"));
  }
  return array.End();
}

void StepTrace::Warn(int64_t step, const std::string& what) {
  QUARTET_LOG_IF_ERROR(ShowWarning(view_, folder_, step, kOwnName, what));
}

}  // namespace quartet

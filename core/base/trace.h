// What a process did when: spans in the Trace Event Format of Chrome, which chrome://tracing and Perfetto show.
//
// The file is a JSON array with one event a line and without the closing bracket, which the format allows: files of
// several ranks of one run on one host can be laid end to end. Each event names its service (pid) and a lane of one
// rank (tid): what the rank computes, and one lane for each kind of collective.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

// Begins to write to `path`, which is overwritten. Times are of the host's monotonic clock. `rank` is that of threads
// which do not say another; below 0: the process has no ranks. FAILED_PRECONDITION while a trace is being written.
absl::Status StartTrace(const std::string& path, const std::string& service, int rank);

inline constexpr int64_t kMaxRecordedBytes = int64_t{64} << 20;

// The same to memory, which takes spans until `max_bytes` are full. Times are of the host's clock for people less
// `origin`, nanoseconds since 1970: those of several hosts fit together as well as their clocks do. What an earlier
// call has recorded is lost.
absl::Status StartTraceInMemory(const std::string& service, int rank, int64_t origin,
                                int64_t max_bytes = kMaxRecordedBytes);

struct RecordedTrace {
  std::string events;   // lines, each with one event and a comma
  int64_t dropped = 0;  // spans that came when `max_bytes` were full
};

// Ends what StartTraceInMemory began. FAILED_PRECONDITION where nothing is recorded to memory.
absl::StatusOr<RecordedTrace> TakeTrace();

// Writes what is left and closes the file; what is in memory is lost. DATA_LOSS where not all could be written.
absl::Status StopTrace();

// `path` for one of several writers: "run.json" and "rank0" give "run.rank0.json".
std::string TraceFileOf(const std::string& path, const std::string& writer);

namespace trace_internal {
extern std::atomic<bool> enabled;
int64_t Now();
}  // namespace trace_internal

// Costs one relaxed load, as everything below does while no trace is written. Thread safe.
inline bool TraceEnabled() { return trace_internal::enabled.load(std::memory_order_relaxed); }

// The monotonic clock in nanoseconds; 0 while no trace is written. A span that began before has no place in it.
inline int64_t TraceNow() { return TraceEnabled() ? trace_internal::Now() : 0; }

// Says which rank this thread is, where ranks are threads.
void SetTraceRank(int rank);

// A span that has been. `lane` "" is the rank's computing; `bytes` below 0: none. `rank` below 0: this thread's.
// Nothing where `start` is 0.
void TraceSpent(std::string_view lane, std::string_view name, int64_t start, int64_t end, int64_t bytes = -1,
                int rank = -1);

// A span from here to the end of the scope: TraceScope span("forward block ", 3);
class TraceScope {
 public:
  // `name` must outlive this. `index` at least 0 follows the name.
  explicit TraceScope(std::string_view name, int index = -1) : name_(name), index_(index), start_(TraceNow()) {}
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;
  ~TraceScope() {
    if (start_ != 0) Finish();
  }

 private:
  void Finish() const;

  const std::string_view name_;
  const int index_;
  const int64_t start_;
};

}  // namespace quartet

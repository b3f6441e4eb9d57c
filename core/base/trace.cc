#include "core/base/trace.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace trace_internal {

std::atomic<bool> enabled{false};

int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace trace_internal

namespace {

// A process that is killed loses no more than so much.
constexpr int64_t kFlushNanos = 1'000'000'000;
constexpr int kLanesPerRank = 64;

thread_local int thread_rank = -1;

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + '"';
}

class TraceRecorder {
 public:
  absl::Status StartFile(const std::string& path, const std::string& service, int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    QUARTET_RETURN_IF_ERROR(CheckNoFile());
    Close();
    file_ = fopen(path.c_str(), "we");
    if (file_ == nullptr) return absl::UnavailableError(absl::StrCat("trace ", path, ": ", std::strerror(errno)));
    path_ = path;
    shift_ = 0;
    fputs("[\n", file_);
    Begin(service, rank);
    return absl::OkStatus();
  }

  absl::Status StartMemory(const std::string& service, int rank, int64_t origin, int64_t max_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    QUARTET_RETURN_IF_ERROR(CheckNoFile());
    Close();
    file_ = open_memstream(&data_, &size_);
    if (file_ == nullptr) return absl::ResourceExhaustedError(absl::StrCat("trace: ", std::strerror(errno)));
    path_.clear();
    max_bytes_ = max_bytes;
    shift_ = absl::GetCurrentTimeNanos() - trace_internal::Now() - origin;
    Begin(service, rank);
    return absl::OkStatus();
  }

  absl::StatusOr<RecordedTrace> Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (file_ == nullptr || !path_.empty()) return absl::FailedPreconditionError("no trace is recorded");
    trace_internal::enabled.store(false, std::memory_order_relaxed);
    const bool failed = ferror(file_) != 0;
    RecordedTrace trace;
    if (fclose(std::exchange(file_, nullptr)) == 0 && !failed) trace.events.assign(data_, size_);
    free(std::exchange(data_, nullptr));
    trace.dropped = dropped_;
    if (trace.events.empty()) return absl::ResourceExhaustedError("trace: no memory");
    return trace;
  }

  absl::Status Stop() {
    std::lock_guard<std::mutex> lock(mutex_);
    return Close() ? absl::OkStatus()
                   : absl::DataLossError(absl::StrCat("trace ", path_, ": not all could be written"));
  }

  void Write(std::string_view lane, std::string_view name, int64_t start, int64_t end, int64_t bytes, int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (file_ == nullptr) return;
    if (path_.empty() && written_ > max_bytes_) {
      ++dropped_;
      return;
    }
    if (rank < 0) rank = thread_rank >= 0 ? thread_rank : rank_;
    const int lane_number = Lane(rank, lane);
    written_ += fprintf(file_, R"({"ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"name":%s)", service_, lane_number,
                        static_cast<double>(start + shift_) / 1e3, static_cast<double>(end - start) / 1e3,
                        Quoted(name).c_str());
    if (bytes >= 0) written_ += fprintf(file_, R"(,"args":{"bytes":%)" PRId64 "}", bytes);
    written_ += fprintf(file_, "},\n");
    if (!path_.empty() && end - flushed_ > kFlushNanos) {
      fflush(file_);
      flushed_ = end;
    }
  }

 private:
  absl::Status CheckNoFile() const {
    if (file_ == nullptr || path_.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("a trace is being written to ", path_));
  }

  void Begin(const std::string& service, int rank) {
    rank_ = rank;
    lanes_.clear();
    written_ = dropped_ = 0;
    // Ranks of one service share its number, other services hardly ever.
    service_ = static_cast<int>(HashBytes(service) % 1'000'000);
    flushed_ = trace_internal::Now();
    WriteName("process_name", 0, service);
    trace_internal::enabled.store(true, std::memory_order_relaxed);
  }

  // False where not all could be written.
  bool Close() {
    trace_internal::enabled.store(false, std::memory_order_relaxed);
    if (file_ == nullptr) return true;
    const bool failed = ferror(file_) != 0;
    const bool closed = fclose(std::exchange(file_, nullptr)) == 0;
    free(std::exchange(data_, nullptr));
    return closed && !failed;
  }

  void WriteName(const char* kind, int lane, const std::string& name) {
    written_ += fprintf(file_,
                        R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"name":%s}},)"
                        "\n",
                        kind, service_, lane, Quoted(name).c_str());
  }

  // The number of a lane; named in the trace when first used.
  int Lane(int rank, std::string_view name) {
    auto& lanes = lanes_[rank];
    const auto found = lanes.find(name);
    if (found != lanes.end()) return found->second;
    const int lane = std::max(rank, 0) * kLanesPerRank + static_cast<int>(lanes.size());
    lanes.emplace(std::string(name), lane);
    // Viewers refuse one without a name.
    const std::string whose = rank < 0 ? "main" : absl::StrCat("rank ", rank);
    WriteName("thread_name", lane,
              name.empty() ? whose
              : rank < 0   ? std::string(name)
                           : absl::StrCat(whose, " ", std::string(name)));
    return lane;
  }

  std::mutex mutex_;
  // Guarded by mutex_.
  FILE* file_ = nullptr;
  std::string path_;       // "": in memory
  int64_t max_bytes_ = 0;  // there
  char* data_ = nullptr;
  size_t size_ = 0;
  int64_t shift_ = 0;  // from the monotonic clock to the trace's
  int64_t written_ = 0, dropped_ = 0;
  int service_ = 0;
  int rank_ = 0;
  int64_t flushed_ = 0;
  std::map<int, std::map<std::string, int, std::less<>>> lanes_;
};

TraceRecorder& Recorder() {
  static TraceRecorder* const recorder = new TraceRecorder();  // threads may write until the process ends
  return *recorder;
}

}  // namespace

absl::Status StartTrace(const std::string& path, const std::string& service, int rank) {
  return Recorder().StartFile(path, service, rank);
}

absl::Status StartTraceInMemory(const std::string& service, int rank, int64_t origin, int64_t max_bytes) {
  return Recorder().StartMemory(service, rank, origin, max_bytes);
}

absl::StatusOr<RecordedTrace> TakeTrace() { return Recorder().Take(); }

absl::Status StopTrace() { return Recorder().Stop(); }

std::string TraceFileOf(const std::string& path, const std::string& writer) {
  const size_t slash = path.rfind('/'), dot = path.rfind('.');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  // A name that begins with its only dot has no extension.
  const size_t end = dot == std::string::npos || dot <= name ? path.size() : dot;
  return absl::StrCat(path.substr(0, end), ".", writer, path.substr(end));
}

void SetTraceRank(int rank) { thread_rank = rank; }

void TraceSpent(std::string_view lane, std::string_view name, int64_t start, int64_t end, int64_t bytes, int rank) {
  if (start == 0 || !TraceEnabled()) return;
  Recorder().Write(lane, name, start, std::max(start, end), bytes, rank);
}

void TraceScope::Finish() const {
  if (index_ < 0) {
    TraceSpent("", name_, start_, trace_internal::Now());
  } else {
    TraceSpent("", absl::StrCat(std::string(name_), index_), start_, trace_internal::Now());
  }
}

}  // namespace quartet

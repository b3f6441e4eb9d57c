#include "core/base/trace.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/hash.h"

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

class TraceFile {
 public:
  absl::Status Start(const std::string& path, const std::string& service, int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (file_ != nullptr) return absl::FailedPreconditionError(absl::StrCat("a trace is being written to ", path_));
    file_ = fopen(path.c_str(), "we");
    if (file_ == nullptr) return absl::UnavailableError(absl::StrCat("trace ", path, ": ", std::strerror(errno)));
    path_ = path;
    rank_ = rank;
    lanes_.clear();
    // Ranks of one service share its number, other services hardly ever.
    service_ = static_cast<int>(HashBytes(service) % 1'000'000);
    flushed_ = trace_internal::Now();
    fputs("[\n", file_);
    fprintf(file_,
            R"({"ph":"M","name":"process_name","pid":%d,"args":{"name":%s}},)"
            "\n",
            service_, Quoted(service).c_str());
    trace_internal::enabled.store(true, std::memory_order_relaxed);
    return absl::OkStatus();
  }

  absl::Status Stop() {
    trace_internal::enabled.store(false, std::memory_order_relaxed);
    std::lock_guard<std::mutex> lock(mutex_);
    if (file_ == nullptr) return absl::OkStatus();
    const bool failed = ferror(file_) != 0;
    if (fclose(std::exchange(file_, nullptr)) != 0 || failed) {
      return absl::DataLossError(absl::StrCat("trace ", path_, ": not all could be written"));
    }
    return absl::OkStatus();
  }

  void Write(std::string_view lane, std::string_view name, int64_t start, int64_t end, int64_t bytes, int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (file_ == nullptr) return;
    if (rank < 0) rank = thread_rank >= 0 ? thread_rank : rank_;
    fprintf(file_, R"({"ph":"X","pid":%d,"tid":%d,"ts":%)" PRId64 R"(.%03d,"dur":%)" PRId64 R"(.%03d,"name":%s)",
            service_, Lane(rank, lane), start / 1000, static_cast<int>(start % 1000), (end - start) / 1000,
            static_cast<int>((end - start) % 1000), Quoted(name).c_str());
    if (bytes >= 0) fprintf(file_, R"(,"args":{"bytes":%)" PRId64 "}", bytes);
    fputs("},\n", file_);
    if (end - flushed_ > kFlushNanos) {
      fflush(file_);
      flushed_ = end;
    }
  }

 private:
  // The number of a lane; named in the file when first used.
  int Lane(int rank, std::string_view name) {
    auto& lanes = lanes_[rank];
    const auto found = lanes.find(name);
    if (found != lanes.end()) return found->second;
    const int lane = rank * kLanesPerRank + static_cast<int>(lanes.size());
    lanes.emplace(std::string(name), lane);
    const std::string title = absl::StrCat("rank ", rank, name.empty() ? "" : " ", std::string(name));
    fprintf(file_,
            R"({"ph":"M","name":"thread_name","pid":%d,"tid":%d,"args":{"name":%s}},)"
            "\n",
            service_, lane, Quoted(title).c_str());
    return lane;
  }

  std::mutex mutex_;
  // Guarded by mutex_.
  FILE* file_ = nullptr;
  std::string path_;
  int service_ = 0;
  int rank_ = 0;
  int64_t flushed_ = 0;
  std::map<int, std::map<std::string, int, std::less<>>> lanes_;
};

TraceFile& File() {
  static TraceFile* const file = new TraceFile();  // threads may write until the process ends
  return *file;
}

}  // namespace

absl::Status StartTrace(const std::string& path, const std::string& service, int rank) {
  return File().Start(path, service, rank);
}

absl::Status StopTrace() { return File().Stop(); }

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
  File().Write(lane, name, start, std::max(start, end), bytes, rank);
}

void TraceScope::Finish() const {
  if (index_ < 0) {
    TraceSpent("", name_, start_, trace_internal::Now());
  } else {
    TraceSpent("", absl::StrCat(std::string(name_), index_), start_, trace_internal::Now());
  }
}

}  // namespace quartet

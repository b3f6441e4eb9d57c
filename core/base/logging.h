// Log lines with service and rank on each, and process-ending checks, without glog's headers: LibTorch defines macros
// of the same names. Thread safe.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

namespace quartet {

enum class LogSeverity { kInfo, kWarning, kError, kFatal };

// Starts logging to standard error, each line tagged "[service/rank]". Call once, before any thread starts.
// `rank` below 0: the tag is the service alone.
void InitLogging(std::string_view program, std::string_view service, int rank);

// Writes one line. kFatal ends the process with exit code 134 (SIGABRT) after writing it.
void LogLine(LogSeverity severity, std::string_view file, int line, std::string_view message);

namespace logging_internal {

class Message {
 public:
  Message(LogSeverity severity, const char* file, int line) : severity_(severity), file_(file), line_(line) {}
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  ~Message() { LogLine(severity_, file_, line_, stream_.str()); }
  std::ostream& stream() { return stream_; }

 private:
  LogSeverity severity_;
  const char* file_;
  int line_;
  std::ostringstream stream_;
};

}  // namespace logging_internal
}  // namespace quartet

// QUARTET_LOG(kInfo) << "loaded " << n << " tensors";
#define QUARTET_LOG(severity) \
  ::quartet::logging_internal::Message(::quartet::LogSeverity::severity, __FILE__, __LINE__).stream()

// Only for our own invariants; what comes from outside is a Status.
#define QUARTET_CHECK(condition) \
  if (condition) {               \
  } else                         \
    QUARTET_LOG(kFatal) << "Check failed: " #condition " "

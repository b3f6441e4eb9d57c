#include "core/service/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/service/rpc/repeated_line.h"

namespace quartet {
namespace {

void Log(gpr_log_func_args* said) {
  static auto* const mutex = new std::mutex;
  static auto* const lines = new std::map<std::pair<std::string, int>, RepeatedLine>;  // by file and line
  std::optional<std::string> line;
  {
    const std::lock_guard lock(*mutex);
    line = (*lines)[{said->file, said->line}].Happened(absl::StrCat("gRPC: ", said->message),
                                                       std::chrono::steady_clock::now());
  }
  if (!line.has_value()) return;
  LogLine(said->severity == GPR_LOG_SEVERITY_ERROR ? LogSeverity::kError : LogSeverity::kInfo, said->file, said->line,
          *line);
}

}  // namespace

void TakeGrpcLog() { gpr_set_log_function(Log); }

}  // namespace quartet

#include "core/base/logging.h"

#include <glog/logging.h>

#include <cstdlib>
#include <string>

namespace quartet {
namespace {

std::string& Tag() {
  static auto* tag = new std::string;
  return *tag;
}

}  // namespace

void InitLogging(std::string_view program, std::string_view service, int rank) {
  Tag() = "[" + std::string(service) + (rank >= 0 ? "/" + std::to_string(rank) : "") + "] ";
  static auto* name = new std::string(program);
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(name->c_str());
}

void LogLine(LogSeverity severity, std::string_view file, int line, std::string_view message) {
  google::LogSeverity glog_severity = google::GLOG_INFO;
  switch (severity) {
    case LogSeverity::kInfo:
      glog_severity = google::GLOG_INFO;
      break;
    case LogSeverity::kWarning:
      glog_severity = google::GLOG_WARNING;
      break;
    case LogSeverity::kError:
      glog_severity = google::GLOG_ERROR;
      break;
    case LogSeverity::kFatal:
      glog_severity = google::GLOG_FATAL;
      break;
  }
  // What a terminal would obey, in texts from outside.
  std::string shown(message);
  for (char& c : shown) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  }
  google::LogMessage(std::string(file).c_str(), line, glog_severity).stream() << Tag() << shown;
}

}  // namespace quartet

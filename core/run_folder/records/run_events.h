// What has happened to a run: its folder's events.jsonl, and the warnings and errors of its logs.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/run_folder/records/file_tail.h"

namespace quartet {

struct RunEvent {
  int64_t step = -1;    // -1: of no step, or of one that is not known
  bool of_log = false;  // a line of a log, of which the time alone is known
  double time = 0;      // Unix seconds; 0: not known
  std::string kind;     // "warning", "error", "restart" or "upgrade"
  std::string from, text;
};

// One thread.
class RunEvents {
 public:
  // Of each file so many are kept, the newest; all are counted.
  static constexpr size_t kKept = 4000;

  explicit RunEvents(std::string run_dir) : run_dir_(std::move(run_dir)) {}

  // Reads what the files have got since the last time; one that is not there is empty. The error names the file that
  // cannot be read.
  absl::Status Read();

  // How many there are, by kind.
  std::map<std::string, int64_t> Counts() const;
  // By their times, the newest last; at most kKept. Valid until the next Read.
  std::vector<const RunEvent*> Newest() const;

 private:
  struct Source {
    FileTail tail;
    std::map<std::string, int64_t> counts = {};
    std::deque<RunEvent> kept = {};
  };
  absl::Status ReadFrom(const std::string& name, void (*add)(const std::string& name, std::string_view line, Source*));
  static void AddRecord(const std::string& name, std::string_view line, Source* source);
  static void AddLogLine(const std::string& name, std::string_view line, Source* source);
  static void Add(RunEvent event, Source* source);

  const std::string run_dir_;
  std::map<std::string, Source> sources_;  // by the file's name
};

}  // namespace quartet

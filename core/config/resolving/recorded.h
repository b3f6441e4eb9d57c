// Files in which a run has recorded its configuration: beside what somebody has set they have the defaults as they were
// then, each with a mark behind it, the value once more: "top_p: 1  # default 1". Whoever writes another value there,
// and leaves the mark, has set the field.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/config/programs.h"
#include "proto/run_config.pb.h"

namespace quartet {

// What stands behind a value, as in text format, that nobody has set.
std::string DefaultMark(absl::string_view value);

struct RecordedConfig {
  RunConfig set;    // what somebody has set; messages that have only defaults are there, and empty
  RunConfig whole;  // with the defaults
};
// Errors are as of ReadConfigText and ParseTextFormat.
absl::StatusOr<RecordedConfig> ReadRecordedConfig(const std::string& path);

// The whole of a run of whatever release, for who only looks at it: fields that are not known here are left out, and
// nothing is checked. Defaults are filled in.
absl::StatusOr<RunConfig> ReadConfigToShow(const std::string& path);

// Sets in `config`, which `program` reads and which has what is set in the file and beside it, the defaults that the
// file records, so that a run is what it was where a later release has others: but for those that `config` has itself,
// and those that follow other fields, or the program, and which what was set beside the file makes others, and where
// services listen, which is of who starts them. `beneath` is
// what the file goes over.
void KeepRecordedDefaults(const RecordedConfig& file, const RunConfig& beneath, Program program, RunConfig* config);

}  // namespace quartet

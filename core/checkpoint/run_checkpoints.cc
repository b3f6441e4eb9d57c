#include "core/checkpoint/run_checkpoints.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace quartet {

namespace fs = std::filesystem;

std::string CheckpointId(int64_t step) { return absl::StrCat("step_", step); }

absl::StatusOr<std::map<int64_t, std::string, std::greater<>>> ListCheckpoints(const std::string& checkpoints) {
  std::map<int64_t, std::string, std::greater<>> found;
  std::error_code error;
  fs::directory_iterator entry(checkpoints, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  while (!error && entry != fs::directory_iterator()) {
    const std::string name = entry->path().filename().string();
    int64_t step = 0;
    if (absl::SimpleAtoi(absl::StripPrefix(name, "step_"), &step) && step > 0 && name == CheckpointId(step)) {
      found[step] = entry->path().string();
    }
    entry.increment(error);
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read the folder ", checkpoints));
  return found;
}

bool IsFinished(const std::string& checkpoint) {
  std::error_code ignored;
  return fs::exists(absl::StrCat(checkpoint, "/", kCheckpointRecordName), ignored);
}

}  // namespace quartet

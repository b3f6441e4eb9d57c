#include "core/checkpoint/run_checkpoints.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/checkpoint/state_folder.h"

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

std::string HintOfStates(const std::string& folder) {
  const std::string path(absl::StripSuffix(folder, "/"));
  std::vector<std::string> steps = {path};
  for (const std::string& checkpoints : {path, path + "/checkpoints"}) {
    const auto listed = ListCheckpoints(checkpoints);
    if (!listed.ok()) continue;
    for (const auto& [step, checkpoint] : *listed) steps.push_back(checkpoint);
  }
  const std::string parent = fs::path(path).parent_path().string();
  if (!absl::EndsWith(path, "_state") && IsFinished(parent)) steps.push_back(parent);
  for (const std::string& step : steps) {
    std::vector<std::string> states;
    for (const char* name : {"policy_state", "critic_state"}) {
      const std::string state = absl::StrCat(step, "/", name);
      std::error_code ignored;
      if (fs::exists(absl::StrCat(state, "/", kStateManifestName), ignored)) states.push_back(state);
    }
    if (states.empty()) continue;
    return absl::StrCat("; there ", states.size() == 1 ? "is " : "are ", absl::StrJoin(states, " and "));
  }
  return "";
}

}  // namespace quartet

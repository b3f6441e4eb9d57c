#include "core/checkpoint/newest_state.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/state_folder.h"

namespace quartet {

absl::StatusOr<std::string> FindNewestState(const std::string& run_dir, const std::string& name) {
  std::map<int64_t, std::filesystem::path, std::greater<>> finished;  // by step, the newest first
  std::error_code error;
  std::filesystem::directory_iterator entry(run_dir + "/checkpoints", error);
  if (error == std::errc::no_such_file_or_directory) return "";
  while (!error && entry != std::filesystem::directory_iterator()) {
    const std::string id = entry->path().filename().string();
    int64_t step = 0;
    std::error_code ignored;
    if (absl::StartsWith(id, "step_") && absl::SimpleAtoi(id.substr(5), &step) &&
        std::filesystem::exists(entry->path() / "checkpoint.json", ignored)) {
      finished[step] = entry->path();
    }
    entry.increment(error);
  }
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read the folder ", run_dir, "/checkpoints"));
  }
  absl::Status newest;
  for (const auto& [step, checkpoint] : finished) {
    std::string folder = (checkpoint / name).string();
    const absl::Status status = StateReader::Open(folder).status();
    if (status.ok()) return folder;
    newest.Update(absl::Status(status.code(), absl::StrCat("the run cannot be continued after ", checkpoint.string(),
                                                           ": ", status.message())));
  }
  if (!newest.ok()) return newest;
  return "";
}

absl::Status UseNewestState(const RunConfig& config, const std::string& name, TrainerConfig* trainer) {
  if (!config.train().load_checkpoint() || !trainer->load_checkpoint().empty()) return absl::OkStatus();
  QUARTET_ASSIGN_OR_RETURN(const std::string folder, FindNewestState(config.run_dir(), name));
  trainer->set_load_checkpoint(folder);
  QUARTET_LOG(kInfo) << (folder.empty() ? "the run has no checkpoint yet: it begins anew" : "going on from " + folder);
  return absl::OkStatus();
}

}  // namespace quartet

#include "core/checkpoint/newest_state.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/checkpoint/state_folder.h"

namespace quartet {

absl::StatusOr<std::string> FindNewestState(const std::string& run_dir, const std::string& name) {
  QUARTET_ASSIGN_OR_RETURN(const auto checkpoints, ListCheckpoints(run_dir + "/checkpoints"));
  absl::Status newest;
  for (const auto& [step, checkpoint] : checkpoints) {
    if (!IsFinished(checkpoint)) continue;
    std::string folder = absl::StrCat(checkpoint, "/", name);
    const absl::Status status = StateReader::Open(folder).status();
    if (status.ok()) return folder;
    newest.Update(Prefixed("the run cannot be continued after " + checkpoint, status));
  }
  if (!newest.ok()) return newest;
  return "";
}

absl::Status UseNewestState(const TrainConfig& train, const std::string& run_dir, const std::string& name,
                            TrainerConfig* trainer) {
  if (!train.load_checkpoint()) return absl::OkStatus();
  // The orchestrator has chosen.
  if (absl::StartsWith(trainer->load_checkpoint(), absl::StrCat(run_dir, "/checkpoints/"))) return absl::OkStatus();
  QUARTET_ASSIGN_OR_RETURN(const std::string folder, FindNewestState(run_dir, name));
  if (!folder.empty()) trainer->set_load_checkpoint(folder);
  QUARTET_LOG(kInfo) << (folder.empty() ? "the run has no checkpoint yet: it begins anew" : "going on from " + folder);
  return absl::OkStatus();
}

}  // namespace quartet

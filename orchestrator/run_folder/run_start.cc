#include "orchestrator/run_folder/run_start.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "orchestrator/run_folder/checkpoint_search.h"

namespace quartet {

absl::StatusOr<RunStart> OpenRun(const RunConfig& config, const std::string& allowed_entry,
                                 const std::function<absl::Status()>& proceed) {
  RunStart start;
  if (!config.train().load_checkpoint() || !RunFolder::HasRun(config.run_dir())) {
    absl::StatusOr<std::unique_ptr<RunFolder>> folder = RunFolder::Create(config, allowed_entry);
    if (absl::IsAlreadyExists(folder.status()) && RunFolder::HasRun(config.run_dir())) {
      return absl::AlreadyExistsError(
          absl::StrCat(folder.status().message(), "; to continue its run: --set=train.load_checkpoint=true"));
    }
    QUARTET_ASSIGN_OR_RETURN(start.folder, std::move(folder));
    return start;
  }
  QUARTET_ASSIGN_OR_RETURN(start.folder, RunFolder::Open(config));
  QUARTET_ASSIGN_OR_RETURN(CheckpointSearch search, FindNewestCheckpoint(start.folder->checkpoints_path(), proceed));
  for (std::string& reason : search.passed_over) {
    start.notes.push_back(absl::StrCat("passed over a checkpoint: ", reason));
  }
  if (!search.found.has_value()) start.notes.push_back("the run has no checkpoint yet: it begins anew");
  start.resume = std::move(search.found);
  return start;
}

}  // namespace quartet

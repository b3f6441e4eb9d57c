#include "core/run_folder/checkpoints/checkpoint_search.h"

#include <filesystem>
#include <future>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/checkpoint/state_folder.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

// The training state in `folder` is the one that was saved together with the record, to the last byte.
absl::Status CheckState(const std::string& folder, const SavedTrainer& expected,
                        const std::function<absl::Status()>& proceed) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<StateReader> state, StateReader::Open(folder));
  if (state->manifest_hash() != expected.manifest_hash) {
    return absl::DataLossError(absl::StrCat(folder, "/", kStateManifestName,
                                            ": is not the one that checkpoint.json beside it was written with; the "
                                            "folder belongs to another checkpoint"));
  }
  return VerifyStateFolder(folder, proceed);
}

absl::Status CheckCheckpoint(const std::string& folder, int64_t step, const CheckpointRecord& record,
                             const std::function<absl::Status()>& proceed) {
  if (record.step != step) {
    return absl::DataLossError(absl::StrCat(folder, "/checkpoint.json: is of step ", record.step));
  }
  if (!record.has_states()) {
    return absl::FailedPreconditionError(absl::StrCat(folder,
                                                      " has no training states, so the run cannot be continued from "
                                                      "it; the run that wrote it had train.save_optimizer: false"));
  }
  std::future<absl::Status> critic = std::async(std::launch::async, [&] {
    return record.critic.has_value() ? CheckState(folder + "/critic_state", *record.critic, proceed) : absl::OkStatus();
  });
  const absl::Status policy =
      record.policy.has_value() ? CheckState(folder + "/policy_state", *record.policy, proceed) : absl::OkStatus();
  const absl::Status critic_done = critic.get();
  return policy.ok() ? critic_done : policy;
}

absl::StatusOr<std::vector<std::string>> NotesOf(const std::string& folder, const CheckpointRecord& record,
                                                 const std::function<absl::Status()>& proceed) {
  std::vector<std::string> notes;
  if (!record.has_own_hash) {
    notes.push_back(absl::StrCat(folder,
                                 "/checkpoint.json has no hash of its own, as release 0.1.0 wrote it: whether it was "
                                 "altered since is not known"));
  }
  for (const auto& [model, hashes] : record.models) {
    const absl::Status whole = VerifyFolder(absl::StrCat(folder, "/", model), hashes, proceed);
    QUARTET_RETURN_IF_ERROR(proceed());
    if (whole.ok()) continue;
    notes.push_back(
        absl::StrCat("do not use the model ", folder, "/", model,
                     " (the run goes on from the training state beside it, which is whole): ", whole.message()));
  }
  return notes;
}

}  // namespace

std::optional<CheckpointRecord> NewestRecord(const std::string& checkpoints) {
  const auto folders = ListCheckpoints(checkpoints);
  if (!folders.ok()) return std::nullopt;
  for (const auto& [step, folder] : *folders) {
    absl::StatusOr<CheckpointRecord> record = ReadCheckpointRecord(folder);
    if (record.ok() && record->has_states()) return *std::move(record);
  }
  return std::nullopt;
}

absl::StatusOr<CheckpointSearch> FindNewestCheckpoint(const std::string& checkpoints,
                                                      const std::function<absl::Status()>& proceed) {
  QUARTET_ASSIGN_OR_RETURN(const auto folders, ListCheckpoints(checkpoints));
  CheckpointSearch search;
  std::vector<absl::Status> errors;
  for (const auto& [step, folder] : folders) {
    absl::StatusOr<CheckpointRecord> record = ReadCheckpointRecord(folder);
    if (absl::IsNotFound(record.status())) {
      search.passed_over.push_back(absl::StrCat(folder, " has no checkpoint.json: it was never finished"));
      continue;
    }
    const absl::Status status = record.ok() ? CheckCheckpoint(folder, step, *record, proceed) : record.status();
    QUARTET_RETURN_IF_ERROR(proceed());
    if (status.ok()) {
      QUARTET_ASSIGN_OR_RETURN(search.notes, NotesOf(folder, *record, proceed));
      search.found = *std::move(record);
      return search;
    }
    errors.push_back(status);
    search.passed_over.push_back(std::string(status.message()));
  }
  std::error_code error;
  const std::string latest = checkpoints + "/latest";
  if (errors.empty() && fs::symlink_status(latest, error).type() == fs::file_type::directory) {
    errors.push_back(absl::FailedPreconditionError(
        absl::StrCat(latest, " is a folder and no link; rename it to the step_N that its checkpoint.json names")));
    search.passed_over.push_back(std::string(errors.back().message()));
  }
  if (errors.empty()) return search;
  return absl::Status(errors.front().code(),
                      absl::StrCat("the run has checkpoints, but none that it can be continued from; nothing was "
                                   "changed. ",
                                   absl::StrJoin(search.passed_over, ". "),
                                   ". Bring back one that is whole, or give another run_dir to begin anew"));
}

}  // namespace quartet

// What makes a folder checkpoints/step_N a whole checkpoint: its commit record, checkpoint.json.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/folder_hashes.h"
#include "core/run_folder/records/metrics.h"

namespace quartet {

struct SavedTrainer {
  uint64_t manifest_hash = 0;  // of <name>_state/manifest.json
  int64_t optimizer_steps = 0;
};

// Written last, when everything that it names is on disk: what was trained, after one step, and what the loop itself
// needs to go on after it. Of runs that learn from rows alone the batch is that of these rows, and the prompts are
// they. Once it is there the step is not made again, so it has what of the step is recorded only later.
struct CheckpointRecord {
  int64_t step = 0;  // steps that were done
  double kl_coefficient = 0;
  // What decides which prompts come next.
  uint64_t seed = 0;
  int64_t rollout_batch_size = 0;
  uint64_t prompts_hash = 0;
  // Set where the run goes on: rows of its data were mended since, and their hash may be another.
  bool rows_are_mended = false;
  // Likewise: what else is otherwise than when the run began and may be why that hash is another, a line each.
  std::vector<std::string> rows_read_otherwise;
  // Prompts, or rows, that were taken for these steps. Not in records of the time when each step took
  // rollout_batch_size.
  std::optional<int64_t> prompts_drawn;
  int64_t drawn() const { return prompts_drawn.value_or(step * rollout_batch_size); }

  // Absent where the checkpoint has no training states: it cannot be continued then.
  std::optional<SavedTrainer> policy;
  // Likewise, and in a run without a critic.
  std::optional<SavedTrainer> critic;
  bool has_states() const { return policy.has_value() || critic.has_value(); }
  // Of the section "actor" or "critic".
  const std::optional<SavedTrainer>& state_of(std::string_view section) const {
    return section == "critic" ? critic : policy;
  }

  // The numbers of the step before `step`, all but those of its evaluation, and whether it has one.
  Metrics metrics;
  bool has_evaluation = false;

  // What the models' folders ("policy", "policy_ema", "critic", "critic_ema") had in them, by their names. Not in
  // records of release 0.1.0.
  std::map<std::string, FolderHashes> models;
  // Set where it is read: whether it began with its own hash, as all do but those of release 0.1.0.
  bool has_own_hash = false;
};

// `folder`/checkpoint.json, durably; it begins with its own hash (core/checkpoint/hashed_text.h).
absl::Status WriteCheckpointRecord(const std::string& folder, const CheckpointRecord& record);

// NOT_FOUND where there is no record, DATA_LOSS where it is not as it was written, INVALID_ARGUMENT where a field is
// not what it may be. Errors name the file, and the field with what is allowed.
absl::StatusOr<CheckpointRecord> ReadCheckpointRecord(const std::string& folder);

// The hashes of the models' folders that are in the checkpoint `folder`.
absl::StatusOr<std::map<std::string, FolderHashes>> HashModels(const std::string& folder);

// Where `model` is the folder of a model in a checkpoint whose record has its hashes: DATA_LOSS names a file that is
// not as it was saved; errors of ReadCheckpointRecord where the record is damaged. OK of all other folders. `proceed`
// as of VerifyFolder.
absl::Status VerifySavedModel(const std::string& model, const std::function<absl::Status()>& proceed = nullptr);

}  // namespace quartet

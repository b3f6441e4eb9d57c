// What makes a folder checkpoints/step_N a whole checkpoint: its commit record, checkpoint.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/run_folder/metrics.h"

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
  // Prompts that were taken for these steps. Not in records of the time when each step took rollout_batch_size.
  std::optional<int64_t> prompts_drawn;

  // Absent where the checkpoint has no training states: it cannot be continued then.
  std::optional<SavedTrainer> policy;
  // Likewise, and in a run without a critic.
  std::optional<SavedTrainer> critic;
  bool has_states() const { return policy.has_value() || critic.has_value(); }

  // The numbers of the step before `step`, all but those of its evaluation, and whether it has one.
  Metrics metrics;
  bool has_evaluation = false;
};

// `folder`/checkpoint.json, durably.
absl::Status WriteCheckpointRecord(const std::string& folder, const CheckpointRecord& record);

// NOT_FOUND where there is no record. Errors name the file.
absl::StatusOr<CheckpointRecord> ReadCheckpointRecord(const std::string& folder);

}  // namespace quartet

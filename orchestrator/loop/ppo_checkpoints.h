// The checkpoints of a PPO run: what the trainers save of their models, what the loop itself goes on with, and the
// record that makes both one.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/run_folder/records/metrics.h"
#include "orchestrator/loop/ppo.h"
#include "orchestrator/loop/updates.h"
#include "proto/common.pb.h"

namespace quartet {

// What the loop itself goes on with between two steps.
struct LoopState {
  int64_t steps_done = 0;
  double kl_coefficient = 0;
  int64_t prompts_drawn = 0;
};

// What a run begins with: that of its checkpoint, where it goes on after one.
LoopState StartOf(const PpoRun& run);

// What the trainers have written for a checkpoint.
struct SavedStates {
  bool continuable = false;  // with the states of optimizers
  SaveCheckpointReply policy, critic;
};

// One thread. What it is made with outlives it.
class PpoCheckpoints {
 public:
  PpoCheckpoints(const PpoRun& run, MemoryTurns& memory);

  // Has policy and critic saved, side by side or in turn, shown on the live line as their folder grows; with the states
  // of their optimizers where train.save_optimizer says so, or the run ends by it and is to be continued. Metrics:
  // time/checkpoint. FAILED_PRECONDITION where a trainer has saved elsewhere than below the orchestrator's run_dir.
  absl::StatusOr<SavedStates> SaveStates(int64_t steps_done, Metrics* metrics);

  // Makes a checkpoint of what SaveStates has written after state.steps_done steps. `metrics`: of the last one, which
  // `has_evaluation` if one is due after it.
  absl::Status Commit(const LoopState& state, const Updates& updates, const SavedStates& saved, const Metrics& metrics,
                      bool has_evaluation);

  // Steps done of the last one that was made here; 0: none.
  int64_t last_step() const { return last_step_; }
  // Of the last one's policy, relative to the run folder; that of the one gone on from where none was made here.
  const std::string& last_policy() const { return last_policy_; }
  // What SaveStates wrote last; 0: nothing yet.
  int64_t last_bytes() const { return last_bytes_; }

 private:
  absl::StatusOr<SavedStates> AskForStates(int64_t steps_done);

  const PpoRun& run_;
  MemoryTurns& memory_;
  int64_t last_step_ = 0;
  int64_t last_bytes_ = 0;
  std::string last_policy_;
};

}  // namespace quartet

// Whether a run can begin where it is to begin.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/clients/handshake.h"
#include "core/run_folder/checkpoints/checkpoint_record.h"
#include "proto/common.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Optimizer steps behind a trainer's weights, those before a restart included.
int64_t OptimizerSteps(const ServiceInfo& trainer);

// The trainer has the weights that a new run begins with: those of the training state `load_checkpoint`, the value of
// `field`.load_checkpoint, or of no optimizer step where it is "". FAILED_PRECONDITION says what to do.
absl::Status CheckFreshTrainer(const ServiceInfo& trainer, const std::string& field,
                               const std::string& load_checkpoint);

// What decides which rows of data a run takes next.
struct RunRows {
  std::string batch_field;  // which option says `batch_size`
  int64_t batch_size = 0;
  uint64_t hash = 0;
  std::string files;
};
// That the trainer has loaded `saved`, of that checkpoint. `field` is its section, "actor" or "critic".
// FAILED_PRECONDITION says what to do.
absl::Status CheckResumedTrainer(const ServiceInfo& trainer, const SavedTrainer& saved, const std::string& field,
                                 const std::string& folder);

// That a run which has made `done` steps has not made more than the `steps` that `option` comes to. INVALID_ARGUMENT
// names both.
absl::Status CheckStepsLeft(int64_t done, int64_t steps, const std::string& option);

// That a run which learns from rows alone, and trains the model of the section `model`, "actor" or "critic", can go on
// after the checkpoint that `resume` is of, in the folder `checkpoints`: all that can be said without its services, but
// for CheckStepsLeft. With train.allow_changed_run it may be another run's. INVALID_ARGUMENT names what differs.
absl::Status CheckRowsGoOn(const RunConfig& config, const RunRows& rows, const std::string& model,
                           const CheckpointRecord& resume, const std::string& checkpoints);

// The same of a PPO run of `steps` steps in all, with CheckStepsLeft.
absl::Status CheckGoesOn(const RunConfig& config, uint64_t prompts_hash, int64_t steps, const CheckpointRecord& resume,
                         const std::string& checkpoints);

// CheckFreshTrainer of both trainers of a PPO run; or, with `resume`, of which CheckGoesOn holds, that the trainers
// have loaded that checkpoint.
absl::Status CheckStart(const RunConfig& config, const std::optional<CheckpointRecord>& resume,
                        const std::string& checkpoints, const Handshake& handshake);

}  // namespace quartet

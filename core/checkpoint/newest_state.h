// Where a trainer that continues a run finds its training state. LibTorch-free.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The folder of the training state `name` ("policy_state", "critic_state") in the newest checkpoint of a run: of those
// in `run_dir`/checkpoints that are finished (checkpoint.json is there), the last step's whose state has a manifest
// that verifies. "" where no checkpoint is finished. Where none of those has such a state, the error of the newest.
absl::StatusOr<std::string> FindNewestState(const std::string& run_dir, const std::string& name);

// With train.load_checkpoint, a trainer starts from there, unless load_checkpoint names a state of that run already.
// Where there is none yet, load_checkpoint stays: the run begins with it.
absl::Status UseNewestState(const TrainConfig& train, const std::string& run_dir, const std::string& name,
                            TrainerConfig* trainer);

}  // namespace quartet

// What a policy update may ask for. LibTorch-free.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "core/training/batch/batch_check.h"
#include "proto/policy_trainer.pb.h"

namespace quartet {

// INVALID_ARGUMENT names the field or the sequence, the value and what is allowed.
absl::Status CheckPolicyUpdate(const PolicyUpdateHeader& header, const std::vector<TrainingSequence>& sequences,
                               const SequenceLimits& limits);

}  // namespace quartet

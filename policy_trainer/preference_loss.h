// The policy's loss of a micro-batch of pairs.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/training/batch/packing.h"
#include "core/training/engine/rank_calls.pb.h"
#include "proto/experience.pb.h"
#include "proto/policy_trainer.pb.h"

namespace quartet {

// As header.loss, a loss of pairs, says of log-probabilities at the header's temperature; scalar, differentiable in the
// hidden states and the head's weight. Adds what is summed over tokens and pairs to `sums`. `part` packed is `batch`,
// as CheckPolicyUpdate wants it.
at::Tensor MicroBatchPreferenceLoss(const PolicyUpdateHeader& header, const std::vector<const TrainingSequence*>& part,
                                    const PackedBatch& batch, const at::Tensor& hidden_TD, const at::Tensor& head_VD,
                                    UpdateSums* sums);

}  // namespace quartet

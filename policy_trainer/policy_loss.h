// The policy's loss of a micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/rl/options/policy_losses.h"
#include "core/training/batch/packing.h"
#include "core/training/engine/rank_calls.pb.h"
#include "proto/experience.pb.h"
#include "proto/policy_trainer.pb.h"

namespace quartet {

// As header.loss, a loss of tokens, says; scalar, differentiable in the hidden states and the head's weight. Adds what
// is summed over tokens to `sums`. `part` packed is `batch`; the header is as CheckPolicyUpdate wants it.
at::Tensor MicroBatchPolicyLoss(const PolicyUpdateHeader& header, const std::vector<const TrainingSequence*>& part,
                                const PackedBatch& batch, const at::Tensor& hidden_TD, const at::Tensor& head_VD,
                                UpdateSums* sums);

}  // namespace quartet

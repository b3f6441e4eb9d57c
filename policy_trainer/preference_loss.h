// The policy's loss of a micro-batch of pairs.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/rl/pairs/pair_loss_options.h"
#include "core/training/batch/packing.h"
#include "core/training/calls/rank_calls.pb.h"
#include "proto/experience.pb.h"

namespace quartet {

// PreferenceLoss of log-probabilities at `temperature`; scalar, differentiable in the hidden states and the head's
// weight. Adds what is summed over tokens and pairs to `sums`. `part` packed is `batch`, as CheckPolicyUpdate wants it.
at::Tensor MicroBatchPreferenceLoss(const PreferenceLossOptions& options, float temperature,
                                    const std::vector<const TrainingSequence*>& part, const PackedBatch& batch,
                                    const at::Tensor& hidden_TD, const at::Tensor& head_VD, UpdateSums* sums);

}  // namespace quartet

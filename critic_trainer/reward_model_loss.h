// A reward model's loss of a micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/training/batch/packing.h"
#include "core/training/engine/rank_calls.pb.h"
#include "proto/experience.pb.h"

namespace quartet {

// PairwiseRewardLoss of the head at each sequence's last token; scalar, differentiable in the hidden states and the
// head's weight. Adds what is summed over pairs to `sums`. `part`, as CheckPairs wants it, packed is `batch`.
at::Tensor RewardModelLoss(const std::vector<const TrainingSequence*>& part, const PackedBatch& batch,
                           const at::Tensor& hidden_TD, const at::Tensor& head_1D, UpdateSums* sums);

}  // namespace quartet

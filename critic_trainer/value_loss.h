// The critic's loss of a micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/training/batch/packing.h"
#include "core/training/engine/rank_calls.pb.h"
#include "proto/critic_trainer.pb.h"
#include "proto/experience.pb.h"

namespace quartet {

// The clipped value loss; scalar, differentiable in the hidden states and the head's weight. Adds clipped tokens and
// values to `sums`. `part` packed is `batch`.
at::Tensor ValueLoss(const CriticUpdateHeader& header, const std::vector<const TrainingSequence*>& part,
                     const PackedBatch& batch, const at::Tensor& hidden_TD, const at::Tensor& head_1D,
                     UpdateSums* sums);

}  // namespace quartet

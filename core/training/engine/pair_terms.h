// What losses of pairs have in common: from PairTerm to tensors, and from a loss to UpdateSums.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/rl/pairs/pair_losses.h"
#include "core/training/engine/rank_calls.pb.h"
#include "proto/experience.pb.h"

namespace quartet {

// fp32 [P] each, of a micro-batch of 2 P sequences.
struct PairTerms {
  at::Tensor weight_P;
  at::Tensor margin_P;
};
PairTerms PairTermsOf(const std::vector<const TrainingSequence*>& part, at::Device device);

// Adds the sums of `result`, the loss of `part`, to `sums`.
void AddPairs(const std::vector<const TrainingSequence*>& part, const PairLossResult& result, UpdateSums* sums);

}  // namespace quartet

// Differentiable losses of pairs of sequences of which the first, "chosen", is preferred. Formulas: docs/algorithms.md.
//
// P pairs are 2 P sequences: chosen, rejected, chosen, rejected, ... Tensors are fp32 or fp64. A loss is the sum over
// pairs of weight * loss of the pair; weights carry the normaliser over all ranks and micro-batches, so that the parts
// of one optimizer step only have to be summed. So do the other sums, which are over pairs. On the meta device they are
// 0. P may be 0: the loss is then 0, and differentiable.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/rl/options/policy_losses.h"

namespace quartet {

struct PairLossResult {
  at::Tensor loss;            // scalar
  double preferred = 0;       // pairs whose chosen sequence has the higher reward
  double chosen_rewards = 0;  // sum of the rewards of chosen sequences
  double rejected_rewards = 0;
};

struct PreferenceLossInputs {
  at::Tensor log_prob_A;
  at::Tensor reference_log_prob_A;
  at::Tensor token_weight_A;  // of each action token within its own sequence's log-probability
  at::Tensor pair_weight_P;
  std::vector<int64_t> sequence_lengths;  // action tokens of each of the 2 P sequences, in order; they add up to A
};

// The loss of pairs that `loss` asks for, for which CheckPolicyLoss holds; differentiable in log_prob_A. With g the
// weighted sum of log_prob - reference_log_prob over a sequence, h is g(chosen) - g(rejected) and beta * g a sequence's
// reward.
PairLossResult PreferenceLoss(const PolicyLossConfig& loss, const PreferenceLossInputs& inputs);

// -log sigmoid(r_chosen - r_rejected - margin) (Bradley and Terry 1952; margins: Touvron et al. 2023), differentiable
// in the rewards, which are [2 P]; margin and weight are [P].
PairLossResult PairwiseRewardLoss(const at::Tensor& reward_S, const at::Tensor& margin_P, const at::Tensor& weight_P);

}  // namespace quartet

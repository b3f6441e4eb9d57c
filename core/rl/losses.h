// Differentiable losses of action tokens, for the trainers. Formulas: docs/algorithms.md.
//
// All arrays are fp32 or fp64 with one entry per action token (A) of a micro-batch. A loss is the sum over tokens of
// weight * loss of the token; the weights carry the normaliser over all ranks and micro-batches
// (core/rl/aggregation.h), so that the parts of one optimizer step only have to be summed. So do the other sums: they
// are over tokens whose weight is not 0. On the meta device they are 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/rl/options/policy_losses.h"

namespace quartet {

// sum w * -log_prob: supervised fine-tuning. Scalar; differentiable in log_prob_A.
at::Tensor SftLoss(const at::Tensor& log_prob_A, const at::Tensor& weight_A);

// Tensors that the loss does not use may be undefined.
struct PolicyLossInputs {
  at::Tensor log_prob_A;
  at::Tensor weight_A;
  at::Tensor advantage_A;
  at::Tensor old_log_prob_A;        // kinds with a ratio, correction, KlGradient::kImportance and kTimesRatio
  at::Tensor rollout_log_prob_A;    // correction
  at::Tensor reference_log_prob_A;  // kl_coef above 0
  at::Tensor entropy_A;             // entropy_coef above 0; else only summed, where defined
  // Action tokens of each sequence, in order; they add up to A. Kinds and corrections over sequences.
  std::vector<int64_t> sequence_lengths;
};

struct PolicyLossResult {
  at::Tensor loss;  // scalar; differentiable in log_prob_A, and in entropy_A where entropy_coef is above 0

  double tokens = 0;         // whose weight is not 0
  double clipped = 0;        // tokens whose clipped term was the smaller one; "cispo": whose ratio was bounded
  double approx_kl_sum = 0;  // of old_log_prob - log_prob
  double kl_sum = 0;         // of the KL of the loss, before its coefficient
  double entropy_sum = 0;
  double masked = 0;     // tokens that the correction dropped
  double truncated = 0;  // tokens whose correction was bounded
  // Of the correction's weights and their squares: (sum w)^2 / sum w^2, each over all ranks, is the effective sample
  // size.
  double correction_sum = 0;
  double correction_square_sum = 0;
};

// The loss of tokens that `loss` asks for, for which CheckPolicyLoss holds.
PolicyLossResult PolicyLoss(const PolicyLossConfig& loss, const PolicyLossInputs& inputs);

struct ValueLossResult {
  at::Tensor loss;       // scalar; differentiable in value_A
  double tokens = 0;     // whose weight is not 0
  double clipped = 0;    // tokens whose clipped term was the larger one
  double value_sum = 0;  // of value_A
};

// 1/2 max((V - R)^2, (V_old + clamp(V - V_old, -c, c) - R)^2), with c = `value_clip`; 1/2 (V - R)^2 where c is 0.
ValueLossResult ClippedValueLoss(const at::Tensor& value_A, const at::Tensor& old_value_A, const at::Tensor& return_A,
                                 const at::Tensor& weight_A, double value_clip);

}  // namespace quartet

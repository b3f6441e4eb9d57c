// Differentiable losses of action tokens, for the trainers. Formulas: docs/algorithms.md.
//
// All arrays are fp32 with one entry per action token (A) of a micro-batch. A loss is the sum over tokens of
// weight * loss of the token; the weights carry the normaliser over all ranks and micro-batches
// (core/rl/aggregation.h), so that the parts of one optimizer step only have to be summed.
#pragma once

#include <ATen/core/Tensor.h>

namespace quartet {

// sum w * -log_prob: supervised fine-tuning. Scalar; differentiable in log_prob_A.
at::Tensor SftLoss(const at::Tensor& log_prob_A, const at::Tensor& weight_A);

struct PolicyLossOptions {
  // The ratio is clipped to [1 - eps_clip_low, 1 + eps_clip_high]; low in [0, 1], high not negative.
  double eps_clip_low = 0.2;
  double eps_clip_high = 0.2;
  // Negative advantages: the loss of a token is at most dual_clip * |advantage|. Off at 0, else greater than 1.
  double dual_clip = 0;
};

struct PolicyLossResult {
  at::Tensor loss;           // scalar; differentiable in log_prob_A
  double clipped = 0;        // tokens whose clipped term was the smaller one, so that they gave no gradient
  double approx_kl_sum = 0;  // sum of old_log_prob - log_prob
};

// PPO's clipped surrogate (Schulman et al. 2017), with ratio = exp(clamp(log_prob - old_log_prob, -20, 20)):
// L = -min(ratio A, clip(ratio) A); with dual clip (Ye et al. 2020), where A < 0: L = -max(that minimum, c A).
PolicyLossResult ClippedPolicyLoss(const at::Tensor& log_prob_A, const at::Tensor& old_log_prob_A,
                                   const at::Tensor& advantage_A, const at::Tensor& weight_A,
                                   const PolicyLossOptions& options);

struct ValueLossResult {
  at::Tensor loss;       // scalar; differentiable in value_A
  double clipped = 0;    // tokens whose clipped term was the larger one
  double value_sum = 0;  // of value_A
};

// 1/2 max((V - R)^2, (V_old + clamp(V - V_old, -c, c) - R)^2), with c = `value_clip`; 1/2 (V - R)^2 where c is 0.
ValueLossResult ClippedValueLoss(const at::Tensor& value_A, const at::Tensor& old_value_A, const at::Tensor& return_A,
                                 const at::Tensor& weight_A, double value_clip);

}  // namespace quartet

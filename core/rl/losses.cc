#include "core/rl/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>

#include "core/base/logging.h"
#include "core/hardware/meta_device.h"

namespace quartet {

at::Tensor SftLoss(const at::Tensor& log_prob_A, const at::Tensor& weight_A) { return -(weight_A * log_prob_A).sum(); }

PolicyLossResult ClippedPolicyLoss(const at::Tensor& log_prob_A, const at::Tensor& old_log_prob_A,
                                   const at::Tensor& advantage_A, const at::Tensor& weight_A,
                                   const PolicyLossOptions& options) {
  QUARTET_CHECK(options.eps_clip_low >= 0 && options.eps_clip_low <= 1 && options.eps_clip_high >= 0);
  QUARTET_CHECK(options.dual_clip == 0 || options.dual_clip > 1) << options.dual_clip;
  const at::Tensor difference = log_prob_A - old_log_prob_A;
  const at::Tensor ratio = at::exp(at::clamp(difference, -20, 20));
  const at::Tensor surrogate = ratio * advantage_A;
  const at::Tensor clipped = at::clamp(ratio, 1 - options.eps_clip_low, 1 + options.eps_clip_high) * advantage_A;
  at::Tensor objective = at::minimum(surrogate, clipped);
  if (options.dual_clip > 0) {
    objective = at::where(advantage_A < 0, at::maximum(objective, options.dual_clip * advantage_A), objective);
  }
  return {.loss = -(weight_A * objective).sum(),
          .clipped = ScalarValue((clipped < surrogate).sum()),
          .approx_kl_sum = -ScalarValue(difference.detach().sum(at::kDouble))};
}

ValueLossResult ClippedValueLoss(const at::Tensor& value_A, const at::Tensor& old_value_A, const at::Tensor& return_A,
                                 const at::Tensor& weight_A, double value_clip) {
  QUARTET_CHECK(value_clip >= 0) << value_clip;
  at::Tensor squares = (value_A - return_A).square();
  double clipped = 0;
  if (value_clip > 0) {
    const at::Tensor near = old_value_A + at::clamp(value_A - old_value_A, -value_clip, value_clip);
    const at::Tensor near_squares = (near - return_A).square();
    // Inside the range `near` differs from the value by rounding, which is no clipping.
    const at::Tensor outside = (value_A - old_value_A).abs() > value_clip;
    clipped = ScalarValue((near_squares > squares).logical_and(outside).sum());
    squares = at::maximum(squares, near_squares);
  }
  return {.loss = 0.5 * (weight_A * squares).sum(),
          .clipped = clipped,
          .value_sum = ScalarValue(value_A.detach().sum(at::kDouble))};
}

}  // namespace quartet

#include "core/rl/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>

#include "core/base/logging.h"
#include "core/hardware/meta_device.h"
#include "core/rl/sequence_sums.h"

namespace quartet {
namespace {

// exp of a log ratio beyond this says no more, and overflows in the end.
constexpr double kMaxLogRatio = 20;
constexpr double kMaxGspoTokenLogRatio = 10;
constexpr double kMaxKl = 10;
constexpr double kMaxKlImportance = 10;
// Probabilities within a divergence stay this far from 0 and 1.
constexpr double kMinProbability = 1e-6;

// Sums of several per-token arrays over tokens of weight other than 0, read from the device at once.
class TokenSums {
 public:
  explicit TokenSums(const at::Tensor& weight_A) : counts_A_(weight_A != 0) {}

  // `*into` becomes the sum of `values_A` when Read is called.
  void Add(const at::Tensor& values_A, double* into) {
    sums_.push_back(at::where(counts_A_, values_A.detach(), 0).sum(at::kDouble));
    targets_.push_back(into);
  }
  void Count(const at::Tensor& condition_A, double* into) {
    sums_.push_back(counts_A_.logical_and(condition_A).sum().to(at::kDouble));
    targets_.push_back(into);
  }
  void CountTokens(double* into) {
    sums_.push_back(counts_A_.sum().to(at::kDouble));
    targets_.push_back(into);
  }
  void Read() {
    const at::Tensor values = HostValues(at::stack(sums_));
    const double* data = values.const_data_ptr<double>();
    for (size_t i = 0; i < targets_.size(); ++i) *targets_[i] = data[i];
  }

 private:
  at::Tensor counts_A_;
  std::vector<at::Tensor> sums_;
  std::vector<double*> targets_;
};

at::Tensor SequenceMeans(const at::Tensor& values_A, const std::vector<int64_t>& lengths) {
  return SequenceSumOfTokens(values_A, lengths) / SequenceSumOfTokens(at::ones_like(values_A), lengths);
}

at::Tensor Ratio(const PolicyLossConfig& loss, const PolicyLossInputs& in) {
  const at::Tensor difference_A = in.log_prob_A - in.old_log_prob_A;
  switch (loss.kind()) {
    case PolicyLossConfig::KIND_GSPO:
      return at::exp(at::clamp(SequenceMeans(difference_A, in.sequence_lengths), -kMaxLogRatio, kMaxLogRatio));
    case PolicyLossConfig::KIND_GSPO_TOKEN: {
      const at::Tensor mean_A = SequenceMeans(difference_A.detach(), in.sequence_lengths);
      return at::exp(at::clamp_max(in.log_prob_A - in.log_prob_A.detach() + mean_A, kMaxGspoTokenLogRatio));
    }
    case PolicyLossConfig::KIND_SEQUENCE_PPO:
      return at::exp(at::clamp(SequenceSumOfTokens(difference_A, in.sequence_lengths), -kMaxLogRatio, kMaxLogRatio));
    default:
      return at::exp(at::clamp(difference_A, -kMaxLogRatio, kMaxLogRatio));
  }
}

// Loss of each token before correction, KL and entropy.
at::Tensor TokenLosses(const PolicyLossConfig& loss, const PolicyLossInputs& in, TokenSums* sums,
                       PolicyLossResult* result) {
  if (loss.kind() == PolicyLossConfig::KIND_SFT) return -in.log_prob_A;
  if (loss.kind() == PolicyLossConfig::KIND_REINFORCE) return -in.advantage_A * in.log_prob_A;
  const at::Tensor ratio_A = Ratio(loss, in);
  const at::Tensor bounded_A = at::clamp(ratio_A, 1 - loss.eps_clip_low(), 1 + loss.eps_clip_high());
  if (loss.kind() == PolicyLossConfig::KIND_CISPO) {
    sums->Count(bounded_A != ratio_A, &result->clipped);
    return -bounded_A.detach() * in.advantage_A * in.log_prob_A;
  }
  const at::Tensor surrogate_A = ratio_A * in.advantage_A;
  const at::Tensor clipped_A = bounded_A * in.advantage_A;
  sums->Count(clipped_A < surrogate_A, &result->clipped);
  const at::Tensor objective_A = at::minimum(surrogate_A, clipped_A);
  if (loss.dual_clip() == 0) return -objective_A;
  return -at::where(in.advantage_A < 0, at::maximum(objective_A, loss.dual_clip() * in.advantage_A), objective_A);
}

// What CorrectionGate says of each token; for a sequence, of its mean.
at::Tensor Gate(const PolicyLossConfig& loss, const PolicyLossInputs& in, const at::Tensor& log_ratio_A) {
  const CorrectionGate gate = CorrectionGateOf(loss);
  const bool over_sequence = CorrectionModeOf(loss) == CorrectionMode::kSequenceMaskGeometric;
  const auto over = [&](const at::Tensor& x_A) {
    return over_sequence ? SequenceMeans(x_A, in.sequence_lengths) : x_A;
  };
  if (gate == CorrectionGate::kRatio) return at::exp(over(log_ratio_A));
  const auto probability = [](const at::Tensor& log_prob_A) {
    return at::clamp(at::exp(log_prob_A), kMinProbability, 1 - kMinProbability);
  };
  const at::Tensor p_A = probability(in.rollout_log_prob_A);
  const at::Tensor q_A = probability(in.old_log_prob_A);
  if (gate == CorrectionGate::kTotalVariation) return over(at::abs(p_A - q_A));
  return over(p_A * at::log(p_A / q_A) + (1 - p_A) * at::log((1 - p_A) / (1 - q_A)));
}

// The weight of each token; detached.
at::Tensor CorrectionWeights(const PolicyLossConfig& loss, const PolicyLossInputs& in, TokenSums* sums,
                             PolicyLossResult* result) {
  const CorrectionMode mode = CorrectionModeOf(loss);
  const at::Tensor log_ratio_A = (in.old_log_prob_A - in.rollout_log_prob_A).detach();
  const bool product = mode == CorrectionMode::kSequenceMaskProduct || mode == CorrectionMode::kSequenceTruncate;
  const at::Tensor ratio_A = at::exp(at::clamp(
      product ? SequenceSumOfTokens(log_ratio_A, in.sequence_lengths) : log_ratio_A, -kMaxLogRatio, kMaxLogRatio));
  at::Tensor weights_A;
  if (mode == CorrectionMode::kTokenTruncate || mode == CorrectionMode::kSequenceTruncate) {
    weights_A = at::clamp(ratio_A, loss.correction_low(), loss.correction_high());
    sums->Count(weights_A != ratio_A, &result->truncated);
  } else {
    const at::Tensor gate_A = product ? ratio_A : Gate(loss, in, log_ratio_A);
    const at::Tensor keeps_A = (gate_A >= loss.correction_low()).logical_and(gate_A <= loss.correction_high());
    weights_A = at::where(keeps_A, ratio_A, 0);
    sums->Count(keeps_A.logical_not(), &result->masked);
  }
  sums->Add(weights_A, &result->correction_sum);
  sums->Add(weights_A.square(), &result->correction_square_sum);
  return weights_A;
}

at::Tensor Kl(const PolicyLossConfig& loss, const PolicyLossInputs& in) {
  const KlEstimator estimator = KlEstimatorOf(loss);
  const KlClamp clamp = KlClampOf(loss);
  const KlGradient gradient = KlGradientOf(loss);
  const at::Tensor difference_A = in.log_prob_A - in.reference_log_prob_A;
  at::Tensor value_A = difference_A;
  if (estimator == KlEstimator::kK2) value_A = 0.5 * difference_A.square();
  if (estimator == KlEstimator::kK3) {
    // Clamped, what lies below is worth more than the clamp anyway, and its exponential would overflow.
    const at::Tensor d_A = ClampsKl(clamp, KlEstimator::kK3) ? at::clamp_min(difference_A, -kMaxKl) : difference_A;
    value_A = at::expm1(-d_A) + d_A;
  }
  if (ClampsKl(clamp, estimator)) value_A = at::clamp(value_A, -kMaxKl, kMaxKl);
  switch (gradient) {
    case KlGradient::kEstimator:
      return value_A;
    case KlGradient::kTimesRatio:
      return value_A * Ratio(loss, in);
    case KlGradient::kK2:
    case KlGradient::kImportance:
      break;
  }
  at::Tensor gradient_A = 0.5 * difference_A.square();
  if (gradient == KlGradient::kImportance) {
    const at::Tensor ratio_A = at::exp(at::clamp(in.log_prob_A - in.old_log_prob_A, -kMaxLogRatio, kMaxLogRatio));
    gradient_A = at::clamp_max(ratio_A, kMaxKlImportance).detach() * gradient_A;
  }
  return value_A.detach() + (gradient_A - gradient_A.detach());
}

}  // namespace

at::Tensor SftLoss(const at::Tensor& log_prob_A, const at::Tensor& weight_A) { return -(weight_A * log_prob_A).sum(); }

PolicyLossResult PolicyLoss(const PolicyLossConfig& loss, const PolicyLossInputs& inputs) {
  PolicyLossResult result;
  TokenSums sums(inputs.weight_A);
  sums.CountTokens(&result.tokens);
  at::Tensor losses_A = TokenLosses(loss, inputs, &sums, &result);
  if (CorrectionModeOf(loss) != CorrectionMode::kOff) {
    losses_A = losses_A * CorrectionWeights(loss, inputs, &sums, &result);
  }
  if (inputs.old_log_prob_A.defined()) sums.Add(inputs.old_log_prob_A - inputs.log_prob_A, &result.approx_kl_sum);
  if (loss.kl_coef() > 0) {
    const at::Tensor kl_A = Kl(loss, inputs);
    sums.Add(kl_A, &result.kl_sum);
    losses_A = losses_A + loss.kl_coef() * kl_A;
  }
  if (inputs.entropy_A.defined()) {
    sums.Add(inputs.entropy_A, &result.entropy_sum);
    if (loss.entropy_coef() > 0) losses_A = losses_A - loss.entropy_coef() * inputs.entropy_A;
  }
  result.loss = (inputs.weight_A * losses_A).sum();
  sums.Read();
  return result;
}

ValueLossResult ClippedValueLoss(const at::Tensor& value_A, const at::Tensor& old_value_A, const at::Tensor& return_A,
                                 const at::Tensor& weight_A, double value_clip) {
  QUARTET_CHECK(value_clip >= 0) << value_clip;
  ValueLossResult result;
  TokenSums sums(weight_A);
  sums.CountTokens(&result.tokens);
  sums.Add(value_A, &result.value_sum);
  at::Tensor squares_A = (value_A - return_A).square();
  if (value_clip > 0) {
    const at::Tensor near_A = old_value_A + at::clamp(value_A - old_value_A, -value_clip, value_clip);
    const at::Tensor near_squares_A = (near_A - return_A).square();
    // Inside the range `near` differs from the value by rounding, which is no clipping.
    const at::Tensor outside_A = (value_A - old_value_A).abs() > value_clip;
    sums.Count((near_squares_A > squares_A).logical_and(outside_A), &result.clipped);
    squares_A = at::maximum(squares_A, near_squares_A);
  }
  result.loss = 0.5 * (weight_A * squares_A).sum();
  sums.Read();
  return result;
}

}  // namespace quartet

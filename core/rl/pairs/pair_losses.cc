#include "core/rl/pairs/pair_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/stack.h>

#include "core/base/logging.h"
#include "core/hardware/meta_device.h"
#include "core/rl/sequence_sums.h"

namespace quartet {
namespace {

// [P, 2]: chosen, rejected.
at::Tensor Pairs(const at::Tensor& values_S) {
  QUARTET_CHECK(values_S.numel() % 2 == 0) << values_S.numel();
  return values_S.view({values_S.numel() / 2, 2});
}

PairLossResult Result(const at::Tensor& losses_P, const at::Tensor& weight_P, const at::Tensor& reward_P2) {
  PairLossResult result;
  result.loss = (weight_P * losses_P).sum();
  const at::Tensor rewards_P2 = reward_P2.detach();
  const at::Tensor chosen_P = rewards_P2.select(1, 0), rejected_P = rewards_P2.select(1, 1);
  const at::Tensor sums = HostValues(at::stack(
      {(chosen_P > rejected_P).sum().to(at::kDouble), chosen_P.sum(at::kDouble), rejected_P.sum(at::kDouble)}));
  const double* data = sums.const_data_ptr<double>();
  result.preferred = data[0];
  result.chosen_rewards = data[1];
  result.rejected_rewards = data[2];
  return result;
}

}  // namespace

PairLossResult PreferenceLoss(const PolicyLossConfig& loss, const PreferenceLossInputs& in) {
  const at::Tensor log_ratio_P2 =
      Pairs(SequenceSums(in.token_weight_A * (in.log_prob_A - in.reference_log_prob_A), in.sequence_lengths));
  const at::Tensor h_P = log_ratio_P2.select(1, 0) - log_ratio_P2.select(1, 1);
  at::Tensor losses_P;
  if (loss.kind() == PolicyLossConfig::KIND_IPO) {
    losses_P = (h_P - 1 / (2 * loss.beta())).square();
  } else {
    const double s = loss.label_smoothing();
    losses_P = -(1 - s) * at::log_sigmoid(loss.beta() * h_P);
    if (s > 0) losses_P = losses_P - s * at::log_sigmoid(-loss.beta() * h_P);
  }
  return Result(losses_P, in.pair_weight_P, loss.beta() * log_ratio_P2);
}

PairLossResult PairwiseRewardLoss(const at::Tensor& reward_S, const at::Tensor& margin_P, const at::Tensor& weight_P) {
  const at::Tensor reward_P2 = Pairs(reward_S);
  const at::Tensor losses_P = -at::log_sigmoid(reward_P2.select(1, 0) - reward_P2.select(1, 1) - margin_P);
  return Result(losses_P, weight_P, reward_P2);
}

}  // namespace quartet

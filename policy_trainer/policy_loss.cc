#include "policy_trainer/policy_loss.h"

#include <algorithm>
#include <string_view>

#include "core/model/decoder/vocabulary_head.h"
#include "core/rl/losses.h"
#include "core/rl/options/token_arrays.h"

namespace quartet {
namespace {

void AddTo(UpdateSums* sums, const PolicyLossResult& result) {
  sums->set_clipped(sums->clipped() + result.clipped);
  sums->set_entropy(sums->entropy() + result.entropy_sum);
  sums->set_approx_kl(sums->approx_kl() + result.approx_kl_sum);
  sums->set_kl_loss(sums->kl_loss() + result.kl_sum);
  sums->set_correction_clipped(sums->correction_clipped() + result.truncated);
  sums->set_correction_masked(sums->correction_masked() + result.masked);
  sums->set_correction_weights(sums->correction_weights() + result.correction_sum);
  sums->set_correction_squares(sums->correction_squares() + result.correction_square_sum);
}

}  // namespace

at::Tensor MicroBatchPolicyLoss(const PolicyUpdateHeader& header, const std::vector<const TrainingSequence*>& part,
                                const PackedBatch& batch, const at::Tensor& hidden_TD, const at::Tensor& head_VD,
                                UpdateSums* sums) {
  const PolicyLossConfig& loss = header.loss();
  const TokenLogProbs now =
      ChunkedLogProbs(hidden_TD, head_VD, batch.targets, header.temperature(),
                      {.wanted = true,
                       .temperature = header.entropy_after_temperature() ? header.temperature() : 1,
                       .differentiable = loss.entropy_coef() > 0});
  const std::vector<std::string_view> read = ArraysOf(loss);
  const auto array = [&](std::string_view name) {
    return std::ranges::count(read, name) > 0 ? Concatenate(part, name, hidden_TD.device()) : at::Tensor();
  };
  const PolicyLossResult result =
      PolicyLoss(loss, {.log_prob_A = now.log_prob_T,
                        .weight_A = array(kLossWeights),
                        .advantage_A = array(kAdvantages),
                        .old_log_prob_A = loss.own_old_log_probs() ? now.log_prob_T.detach() : array(kOldLogProbs),
                        .rollout_log_prob_A = array(kRolloutLogProbs),
                        .reference_log_prob_A = array(kReferenceLogProbs),
                        .entropy_A = now.entropy_T,
                        .sequence_lengths = batch.actions});
  AddTo(sums, result);
  return result.loss;
}

}  // namespace quartet

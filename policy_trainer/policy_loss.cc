#include "policy_trainer/policy_loss.h"

#include "core/model/vocabulary_head.h"
#include "core/rl/losses.h"
#include "policy_trainer/loss_options.h"

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

at::Tensor MicroBatchPolicyLoss(const PolicyUpdateHeader& header, const PolicyLossOptions& options,
                                const std::vector<const TrainingSequence*>& part, const PackedBatch& batch,
                                const at::Tensor& hidden_TD, const at::Tensor& head_VD, UpdateSums* sums) {
  const TokenLogProbs now =
      ChunkedLogProbs(hidden_TD.index_select(0, batch.action_rows_A), head_VD, batch.action_ids_A, header.temperature(),
                      {.wanted = true,
                       .temperature = header.entropy_after_temperature() ? header.temperature() : 1,
                       .differentiable = options.entropy_coefficient > 0});
  const auto array = [&](bool is_used, ActionField field) {
    return is_used ? Concatenate(part, field, hidden_TD.device()) : at::Tensor();
  };
  const bool needs_old = NeedsOldLogProbs(options), own_is_old = header.loss().own_old_log_probs();
  const at::Tensor old_A =
      needs_old && own_is_old ? now.log_prob_T.detach() : array(needs_old, &TrainingSequence::old_log_probs);
  const bool corrects = options.correction.mode != CorrectionMode::kOff;
  const PolicyLossResult result = PolicyLoss(
      options, {.log_prob_A = now.log_prob_T,
                .weight_A = array(true, &TrainingSequence::loss_weights),
                .advantage_A = array(options.kind != PolicyLossKind::kSft, &TrainingSequence::advantages),
                .old_log_prob_A = old_A,
                .rollout_log_prob_A = array(corrects, &TrainingSequence::rollout_log_probs),
                .reference_log_prob_A = array(options.kl_coefficient > 0, &TrainingSequence::reference_log_probs),
                .entropy_A = now.entropy_T,
                .sequence_lengths = batch.actions});
  AddTo(sums, result);
  return result.loss;
}

}  // namespace quartet

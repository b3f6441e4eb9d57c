#include "policy_trainer/policy_loss.h"

#include "core/hardware/meta_device.h"
#include "core/model/vocabulary_head.h"
#include "core/rl/losses.h"

namespace quartet {

at::Tensor PolicyLoss(const PolicyUpdateHeader& header, const std::vector<const TrainingSequence*>& part,
                      const PackedBatch& batch, const at::Tensor& hidden_TD, const at::Tensor& head_VD,
                      UpdateSums* sums) {
  const auto array = [&](ActionField field) { return Concatenate(part, field, hidden_TD.device()); };
  const TokenLogProbs now = ChunkedLogProbs(hidden_TD.index_select(0, batch.action_rows_A), head_VD, batch.action_ids_A,
                                            header.temperature(), {.wanted = true});
  sums->set_entropy(sums->entropy() + ScalarValue(now.entropy_T.sum(at::kDouble)));
  const at::Tensor weights_A = array(&TrainingSequence::loss_weights);
  if (header.loss().kind() == PolicyLossConfig::KIND_SFT) return SftLoss(now.log_prob_T, weights_A);

  const PolicyLossResult loss = ClippedPolicyLoss(now.log_prob_T, array(&TrainingSequence::old_log_probs),
                                                  array(&TrainingSequence::advantages), weights_A,
                                                  {.eps_clip_low = header.loss().eps_clip_low(),
                                                   .eps_clip_high = header.loss().eps_clip_high(),
                                                   .dual_clip = header.loss().dual_clip()});
  sums->set_clipped(sums->clipped() + loss.clipped);
  sums->set_approx_kl(sums->approx_kl() + loss.approx_kl_sum);
  return loss.loss;
}

}  // namespace quartet

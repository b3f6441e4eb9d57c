#include "policy_trainer/preference_loss.h"

#include "core/hardware/meta_device.h"
#include "core/model/decoder/vocabulary_head.h"
#include "core/rl/options/token_arrays.h"
#include "core/rl/pairs/pair_losses.h"
#include "core/training/engine/pair_terms.h"

namespace quartet {

at::Tensor MicroBatchPreferenceLoss(const PolicyUpdateHeader& header, const std::vector<const TrainingSequence*>& part,
                                    const PackedBatch& batch, const at::Tensor& hidden_TD, const at::Tensor& head_VD,
                                    UpdateSums* sums) {
  const TokenLogProbs now = ChunkedLogProbs(hidden_TD, head_VD, batch.targets, header.temperature(), {.wanted = true});
  const auto array = [&](std::string_view name) { return Concatenate(part, name, hidden_TD.device()); };
  const PairLossResult result =
      PreferenceLoss(header.loss(), {.log_prob_A = now.log_prob_T,
                                     .reference_log_prob_A = array(kReferenceLogProbs),
                                     .token_weight_A = array(kLossWeights),
                                     .pair_weight_P = PairTermsOf(part, hidden_TD.device()).weight_P,
                                     .sequence_lengths = batch.actions});
  sums->set_entropy(sums->entropy() + ScalarValue(now.entropy_T.detach().sum(at::kDouble)));
  AddPairs(part, result, sums);
  return result.loss;
}

}  // namespace quartet

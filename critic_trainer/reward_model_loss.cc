#include "critic_trainer/reward_model_loss.h"

#include "core/training/engine/forward.h"
#include "core/training/engine/pair_terms.h"

namespace quartet {

at::Tensor RewardModelLoss(const std::vector<const TrainingSequence*>& part, const PackedBatch& batch,
                           const at::Tensor& hidden_TD, const at::Tensor& head_1D, UpdateSums* sums) {
  const PairTerms terms = PairTermsOf(part, hidden_TD.device());
  const PairLossResult result =
      PairwiseRewardLoss(ScalarHead(hidden_TD, head_1D, batch.last_rows_S), terms.margin_P, terms.weight_P);
  AddPairs(part, result, sums);
  return result.loss;
}

}  // namespace quartet

#include "critic_trainer/value_loss.h"

#include "core/rl/losses.h"
#include "core/training/engine/forward.h"

namespace quartet {

at::Tensor ValueLoss(const CriticUpdateHeader& header, const std::vector<const TrainingSequence*>& part,
                     const PackedBatch& batch, const at::Tensor& hidden_TD, const at::Tensor& head_1D,
                     UpdateSums* sums) {
  const auto array = [&](ActionField field) { return Concatenate(part, field, hidden_TD.device()); };
  const ValueLossResult result =
      ClippedValueLoss(ScalarHead(hidden_TD, head_1D, batch.action_rows_A), array(&TrainingSequence::old_values),
                       array(&TrainingSequence::returns), array(&TrainingSequence::loss_weights), header.value_clip());
  sums->set_clipped(sums->clipped() + result.clipped);
  sums->set_values(sums->values() + result.value_sum);
  return result.loss;
}

}  // namespace quartet

#include "critic_trainer/value_loss.h"

#include "core/rl/losses.h"
#include "core/rl/options/token_arrays.h"
#include "core/training/engine/forward.h"

namespace quartet {

at::Tensor ValueLoss(const CriticUpdateHeader& header, const std::vector<const TrainingSequence*>& part,
                     const PackedBatch& batch, const at::Tensor& hidden_TD, const at::Tensor& head_1D,
                     UpdateSums* sums) {
  const auto array = [&](std::string_view name) { return Concatenate(part, name, hidden_TD.device()); };
  const ValueLossResult result = ClippedValueLoss(ActionScalars(hidden_TD, head_1D, batch.targets), array(kOldValues),
                                                  array(kReturns), array(kLossWeights), header.value_clip());
  sums->set_clipped(sums->clipped() + result.clipped);
  sums->set_values(sums->values() + result.value_sum);
  return result.loss;
}

}  // namespace quartet

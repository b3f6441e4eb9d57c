#include "core/zero/weights_average.h"

#include <ATen/core/grad_mode.h>

#include "core/memory/accounted_tensor.h"

namespace quartet {

WeightsAverage::WeightsAverage(ShardedModel::Impl* model, double decay) : model_(model), decay_(decay) {
  const at::NoGradGuard no_grad;
  for (const ShardedGroup& group : model->groups) {
    average_.push_back(
        model->Zeros(MemoryTier::kHost, MemoryCategory::kOptimizer, group.shard.numel(), group.shard.scalar_type()));
    average_.back().copy_(group.shard);
  }
}

void WeightsAverage::Update() {
  const at::NoGradGuard no_grad;
  for (size_t g = 0; g < average_.size(); ++g) {
    at::Tensor weights = model_->groups[g].shard;
    if (model_->host_is_apart() && model_->shard_tier() == MemoryTier::kDevice) {
      weights = AccountedEmpty(model_->ledger, MemoryCategory::kOptimizer, weights.numel(), weights.scalar_type(),
                               model_->options.device, MemoryTier::kHost);
      weights.copy_(model_->groups[g].shard);
    }
    average_[g].lerp_(weights, 1 - decay_);
  }
}

}  // namespace quartet

// An exponential moving average of a trained model's weights over its steps, this rank's part of it, in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/zero/sharded/sharded_model_impl.h"

namespace quartet {

class WeightsAverage {
 public:
  // Begins with the weights as they are now. `decay` is in (0, 1). `model` must outlive this.
  WeightsAverage(ShardedModel::Impl* model, double decay);

  // average = decay * average + (1 - decay) * weights.
  void Update();

  // Laid out as a group's shard; the tensors themselves.
  const at::Tensor& of(int group) const { return average_[group]; }

 private:
  ShardedModel::Impl* const model_;
  const double decay_;
  std::vector<at::Tensor> average_;  // by group
};

}  // namespace quartet

// Inside of TrainableModel.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/zero/sharded/sharded_model_impl.h"
#include "core/zero/sharded_gradient.h"
#include "core/zero/sharded_optimizer.h"
#include "core/zero/trainable_model.h"
#include "core/zero/weights_average.h"

namespace quartet {

struct TrainableModel::Impl {
  TrainableModelOptions options;
  std::unique_ptr<ShardedModel> model;
  ShardedModel::Impl* sharded = nullptr;          // of `model`
  ShardedModel::Impl* trained = nullptr;          // that, or its adapters'
  std::map<std::string, std::string> companions;  // of the folder, for Save; rank 0's
  std::unique_ptr<ShardedGradient> gradient;
  std::unique_ptr<ShardedOptimizer> optimizer;
  std::unique_ptr<WeightsAverage> average;  // null without ema_decay

  bool trains_adapters() const { return trained != sharded; }
  double ForwardBackward(const PackedSequences& batch, const LossFunction& loss);
  // What forwards compute with follows the master weights. Collective.
  void RefreshComputeWeights();
  absl::StatusOr<int64_t> Save(const std::string& folder,
                               const std::function<GatheredGroup(int group, int next)>& gather);
};

}  // namespace quartet

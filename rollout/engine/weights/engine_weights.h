// The weights that an engine computes with, and new ones that are staged beside them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/model/parameter_layout.h"
#include "core/zero/sharded/sharded_model.h"
#include "rollout/engine/weights/weight_order.h"
#include "rollout/engine/weights/weight_staging.h"

namespace quartet {

// One thread, but for held() and NewStaging, and what a staging does.
class EngineWeights {
 public:
  // Puts what the model holds in the order of products.
  explicit EngineWeights(std::unique_ptr<ShardedModel> model);

  ShardedModel& model() { return *model_; }
  const ShardedModel& model() const { return *model_; }
  // Where every rank holds the whole model: views of its memory, null after Release. At stage 3 null: groups are
  // gathered, and are in order after ArrangeGathered.
  const WholeWeights* whole() const { return whole_.has_value() ? &*whole_ : nullptr; }
  // What is staged: the model, or its adapters alone, where it has any; the model stays as it is then.
  ShardedModel& staged() const { return model_->adapters() == nullptr ? *model_ : *model_->adapters(); }
  // Of all its groups, in their order.
  const std::vector<ParameterSpec>& tensors() const { return tensors_; }

  // In the memory that the last Use left over, or ReserveStaging took, where no other staging has it and it has not
  // been given back.
  std::unique_ptr<WeightStaging> NewStaging();
  void ReserveStaging();
  // Puts a staging of NewStaging's in the place of the weights; prepares it first, if it is not prepared.
  void Use(WeightStaging& staging);

  // Another one whenever what whole() views has moved.
  int64_t places() const { return places_; }

  // Gives the model's memory back. What is staged is lost with it: adapters are not.
  void Release();
  // Gives back the memory that the next staging would have.
  void ReleaseSpare();
  // After Release: reads what the model's folder has. Errors as ShardedModel::Load's; throws OutOfMemoryError. Returns
  // what ShardedModel::ReadShards does.
  absl::StatusOr<uint64_t> ReadAgain();
  bool held() const { return held_; }

 private:
  void ArrangeShards();
  // Puts a staging of the model in its place; returns the memory that is left over.
  std::vector<at::Tensor> UseModel(WeightStaging& staging);
  std::vector<at::Tensor> UseAdapters(WeightStaging& staging);

  const std::unique_ptr<ShardedModel> model_;
  std::vector<ParameterSpec> tensors_;
  std::optional<WholeWeights> whole_;
  std::mutex spare_mutex_;
  std::vector<at::Tensor> spare_;  // a set of buffers, or none
  int64_t places_ = 0;
  std::atomic<bool> held_ = true;
};

}  // namespace quartet

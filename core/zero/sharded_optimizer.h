// An optimizer's step over this rank's part of the master weights, where they are (device or host).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/zero/optimizer/optimizer.h"
#include "core/zero/sharded/sharded_model_impl.h"
#include "core/zero/trainable_model.h"

namespace quartet {

class ShardedOptimizer {
 public:
  // `model` must outlive this. The state is in `tier` at first.
  ShardedOptimizer(ShardedModel::Impl* model, std::shared_ptr<const Optimizer> optimizer, MemoryTier tier);

  // One update of the model's shards by `gradients / divisor`, laid out alike.
  void Step(const std::vector<at::Tensor>& gradients, double divisor, double learning_rate);

  // Where the state is from now on, but for the master weights, which stay.
  void MoveStateTo(MemoryTier tier);

  // The tensors themselves: the master weights, and what the optimizer keeps beside them.
  std::vector<NamedState> state(int group) const;
  const Optimizer& optimizer() const { return *optimizer_; }

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  using State = std::vector<std::vector<at::Tensor>>;  // as optimizer_->state() has it, then by group

  State NewState(MemoryTier tier) const;  // zero
  void Keep();                            // the state's memory, which is the host's, as pinned_

  ShardedModel::Impl* const model_;
  const std::shared_ptr<const Optimizer> optimizer_;
  MemoryTier state_tier_;
  State state_;   // there
  State pinned_;  // what it has moved to in host memory once stays: to pin memory takes longer than the copy
  int64_t steps_ = 0;

  // Elements of a group's shard that are decayed alike; padding belongs to what is before it.
  struct Run {
    int group;
    int64_t begin;
    int64_t count;
    bool decay;
  };
  std::vector<Run> runs_;
};

}  // namespace quartet

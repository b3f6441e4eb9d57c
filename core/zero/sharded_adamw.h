// AdamW on this rank's part of the master weights, where they are (device or host), and the average of the weights over
// its steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/zero/sharded_model_impl.h"
#include "core/zero/trainable_model.h"

namespace quartet {

class ShardedAdamW {
 public:
  // `model` must outlive this. With an `ema_decay` other than 0 an exponential moving average of the weights is kept in
  // host memory: ema = ema_decay * ema + (1 - ema_decay) * weights after each step, from the weights as they are now.
  ShardedAdamW(ShardedModel::Impl* model, const AdamWOptions& options, double ema_decay);

  // One update of the model's resident buffers by `gradients / divisor`, laid out alike.
  void Step(const std::vector<at::Tensor>& gradients, double divisor, double learning_rate);

  // The tensors themselves.
  std::vector<NamedState> state(int group) const;
  // Of the weights' average, by group; empty without one.
  const std::vector<at::Tensor>& ema() const { return ema_; }

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  void Average();

  ShardedModel::Impl* const model_;
  const AdamWOptions options_;
  const double ema_decay_;
  std::vector<at::Tensor> first_moments_, second_moments_, ema_;
  at::Tensor step_count_;  // fp32 scalar, as the fused kernel wants it
  int64_t steps_ = 0;

  // Elements of a group's resident buffer that are decayed alike; padding belongs to what is before it.
  struct Run {
    int group;
    int64_t begin;
    int64_t count;
    bool decay;
  };
  std::vector<Run> runs_;
};

}  // namespace quartet

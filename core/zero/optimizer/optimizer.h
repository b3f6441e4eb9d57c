// What an optimizer does to flat buffers of weights: one step, element by element, so that it does not matter how a
// model is cut into buffers and these over ranks. It holds no buffer itself: core/zero/sharded_optimizer.h does.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quartet {

class TrainerConfig;

// Parts of flat buffers that are decayed alike. The tensors of a part have one length, type and device.
struct FlatRuns {
  bool decay = false;                          // whether the optimizer's weight decay is for them
  std::vector<at::Tensor> weights, gradients;  // a part each
  std::vector<std::vector<at::Tensor>> state;  // as Optimizer::state() has it, then a part each
};

struct OptimizerStep {
  int64_t number = 0;  // of the step, from 1 on
  double learning_rate = 0;
  // A scalar, fp32, by which gradients are divided first; none: 1. They may be overwritten.
  std::optional<at::Tensor> grad_scale;
};

// Immutable, and so thread safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // As in TrainerConfig.optim.
  virtual std::string_view name() const = 0;
  // What it keeps beside the weights, by the names that checkpoints have for it: buffers laid out as the weights, of
  // their type, and 0 before the first step.
  virtual std::vector<std::string> state() const = 0;
  // Updates weights and state of `runs`. Under at::NoGradGuard.
  virtual void Step(const FlatRuns& runs, const OptimizerStep& step) const = 0;
};

// The one that `optim` names. What is not set of its options has its default; all are in their range.
std::shared_ptr<const Optimizer> MakeOptimizer(const TrainerConfig& trainer);

}  // namespace quartet

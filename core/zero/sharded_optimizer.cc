#include "core/zero/sharded_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/fail_point.h"

namespace quartet {

ShardedOptimizer::ShardedOptimizer(ShardedModel::Impl* model, std::shared_ptr<const Optimizer> optimizer,
                                   MemoryTier tier)
    : model_(model), optimizer_(std::move(optimizer)), state_tier_(tier), state_(NewState(tier)) {
  if (tier != model->shard_tier()) Keep();
  for (int g = 0; g < static_cast<int>(model->flat.size()); ++g) {
    const auto& parameters = model->layout.groups[g].parameters;
    const FlatGroup& flat = model->flat[g];
    const int64_t begin = model->shard_begin(g), end = begin + flat.shard;
    for (size_t p = 0; p < parameters.size(); ++p) {
      const int64_t first = std::max(begin, flat.offsets[p]);
      const int64_t last = std::min(end, p + 1 < parameters.size() ? flat.offsets[p + 1] : flat.total);
      if (first >= last) continue;
      const bool decay = parameters[p].weight_decay;
      if (!runs_.empty() && runs_.back().group == g && runs_.back().decay == decay) {
        runs_.back().count += last - first;
      } else {
        runs_.push_back({g, first - begin, last - first, decay});
      }
    }
  }
}

ShardedOptimizer::State ShardedOptimizer::NewState(MemoryTier tier) const {
  const at::NoGradGuard no_grad;
  State state(optimizer_->state().size());
  for (std::vector<at::Tensor>& buffers : state) {
    for (const ShardedGroup& group : model_->groups) {
      buffers.push_back(model_->Zeros(tier, MemoryCategory::kOptimizer, group.shard.numel(), model_->state_dtype()));
    }
  }
  return state;
}

void ShardedOptimizer::Step(const std::vector<at::Tensor>& gradients, double divisor, double learning_rate) {
  const at::NoGradGuard no_grad;
  OptimizerStep step{.number = ++steps_, .learning_rate = learning_rate, .grad_scale = std::nullopt};
  if (divisor != 1) {
    step.grad_scale = at::full({}, divisor, at::TensorOptions(at::kFloat).device(gradients.front().device()));
  }
  for (const bool decay : {false, true}) {
    FlatRuns parts{.decay = decay, .weights = {}, .gradients = {}, .state = {}};
    parts.state.resize(state_.size());
    for (const Run& run : runs_) {
      if (run.decay != decay) continue;
      const auto part = [&](const at::Tensor& buffer) { return buffer.narrow(0, run.begin, run.count); };
      parts.weights.push_back(part(model_->groups[run.group].shard));
      parts.gradients.push_back(part(gradients[run.group]));
      for (size_t s = 0; s < state_.size(); ++s) parts.state[s].push_back(part(state_[s][run.group]));
    }
    if (parts.weights.empty()) continue;
    optimizer_->Step(parts, step);
    ThrowAtFailPoint("trainable_model.optimizer");
  }
}

void ShardedOptimizer::MoveStateTo(MemoryTier tier) {
  if (tier == state_tier_) return;
  const at::NoGradGuard no_grad;
  State moved = tier == MemoryTier::kHost && !pinned_.empty() ? pinned_ : NewState(tier);
  for (size_t s = 0; s < state_.size(); ++s) {
    for (size_t g = 0; g < state_[s].size(); ++g) moved[s][g].copy_(state_[s][g]);
  }
  state_ = std::move(moved);
  state_tier_ = tier;
  if (tier == MemoryTier::kHost) Keep();
}

void ShardedOptimizer::Keep() {
  if (model_->host_is_apart()) pinned_ = state_;
}

std::vector<NamedState> ShardedOptimizer::state(int group) const {
  std::vector<NamedState> state = {{"master", model_->groups[group].shard}};
  const std::vector<std::string> names = optimizer_->state();
  for (size_t s = 0; s < names.size(); ++s) state.push_back({names[s], state_[s][group]});
  return state;
}

}  // namespace quartet

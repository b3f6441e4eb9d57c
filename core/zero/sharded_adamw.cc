#include "core/zero/sharded_adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "core/base/fail_point.h"
#include "core/memory/accounted_tensor.h"

namespace quartet {

ShardedAdamW::ShardedAdamW(ShardedModel::Impl* model, const AdamWOptions& options, double ema_decay)
    : model_(model), options_(options), ema_decay_(ema_decay) {
  const at::NoGradGuard no_grad;
  for (int g = 0; g < static_cast<int>(model->flat.size()); ++g) {
    const at::Tensor& weights = model->held[g].resident;
    auto zeros = [&](MemoryTier tier) {
      return model->Zeros(tier, MemoryCategory::kOptimizer, weights.numel(), model->state_dtype());
    };
    first_moments_.push_back(zeros(model->resident_tier()));
    second_moments_.push_back(zeros(model->resident_tier()));
    if (ema_decay != 0) {
      ema_.push_back(zeros(MemoryTier::kHost));
      ema_[g].copy_(weights);
    }

    const auto& parameters = model->layout.groups[g].parameters;
    const FlatGroup& flat = model->flat[g];
    const int64_t begin = model->part_begin(g), end = begin + flat.shard;
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
  step_count_ = at::zeros({}, at::TensorOptions(at::kFloat).device(first_moments_[0].device()));
}

void ShardedAdamW::Step(const std::vector<at::Tensor>& gradients, double divisor, double learning_rate) {
  const at::NoGradGuard no_grad;
  std::optional<at::Tensor> scale;
  if (divisor != 1) scale = at::full({}, divisor, step_count_.options());
  ++steps_;
  step_count_.fill_(static_cast<double>(steps_));
  for (const bool decay : {false, true}) {
    std::vector<at::Tensor> weights, gradient, first, second, counts;
    for (const Run& run : runs_) {
      if (run.decay != decay) continue;
      const auto part = [&](const at::Tensor& buffer) { return buffer.narrow(0, run.begin, run.count); };
      weights.push_back(part(model_->held[run.group].resident));
      gradient.push_back(part(gradients[run.group]));
      first.push_back(part(first_moments_[run.group]));
      second.push_back(part(second_moments_[run.group]));
      counts.push_back(step_count_);
    }
    if (weights.empty()) continue;
    at::_fused_adamw_(weights, gradient, first, second, /*max_exp_avg_sqs=*/{}, counts, learning_rate, options_.beta1,
                      options_.beta2, decay ? options_.weight_decay : 0, options_.eps, /*amsgrad=*/false,
                      /*maximize=*/false, scale);
    ThrowAtFailPoint("trainable_model.adamw");
  }
  Average();
}

void ShardedAdamW::Average() {
  for (size_t g = 0; g < ema_.size(); ++g) {
    at::Tensor weights = model_->held[g].resident;
    if (model_->host_is_apart() && model_->resident_tier() == MemoryTier::kDevice) {
      weights = AccountedEmpty(model_->ledger, MemoryCategory::kOptimizer, weights.numel(), weights.scalar_type(),
                               model_->options.device, MemoryTier::kHost);
      weights.copy_(model_->held[g].resident);
    }
    ema_[g].lerp_(weights, 1 - ema_decay_);
  }
}

std::vector<NamedState> ShardedAdamW::state(int group) const {
  std::vector<NamedState> state = {{"master", model_->held[group].resident},
                                   {"exp_avg", first_moments_[group]},
                                   {"exp_avg_sq", second_moments_[group]}};
  if (!ema_.empty()) state.push_back({"ema", ema_[group]});
  return state;
}

}  // namespace quartet

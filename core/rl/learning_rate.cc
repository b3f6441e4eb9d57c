#include "core/rl/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/rl/options/option_name.h"

namespace quartet {
absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(const TrainerConfig& trainer, int64_t total_steps) {
  LearningRateSchedule schedule;
  QUARTET_ASSIGN_OR_RETURN(
      schedule.shape_,
      ParseOptionName<Shape>("learning rate scheduler", trainer.lr_scheduler(),
                             {{"constant", Shape::kConstant}, {"linear", Shape::kLinear}, {"cosine", Shape::kCosine}}));
  if (total_steps <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule of ", total_steps, " optimizer steps; at least 1 is needed"));
  }
  schedule.peak_ = trainer.learning_rate();
  schedule.warmup_steps_ =
      trainer.has_lr_warmup_steps()
          ? trainer.lr_warmup_steps()
          : static_cast<int64_t>(std::ceil(trainer.lr_warmup_ratio() * static_cast<double>(total_steps)));
  schedule.total_steps_ = total_steps;
  schedule.min_ratio_ = trainer.min_lr_ratio();
  return schedule;
}

double LearningRateSchedule::At(int64_t step) const {
  step = std::clamp<int64_t>(step, 1, total_steps_);
  if (step < warmup_steps_) return peak_ * static_cast<double>(step) / static_cast<double>(warmup_steps_);
  const double progress = static_cast<double>(step - warmup_steps_) /
                          static_cast<double>(std::max<int64_t>(1, total_steps_ - warmup_steps_));
  double share = 1;
  if (shape_ == Shape::kLinear) share = 1 - progress;
  if (shape_ == Shape::kCosine) share = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return peak_ * (shape_ == Shape::kConstant ? 1 : min_ratio_ + (1 - min_ratio_) * share);
}

}  // namespace quartet

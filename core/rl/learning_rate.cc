#include "core/rl/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/rl/option_name.h"

namespace quartet {
namespace {

bool IsShare(double x) { return x >= 0 && x <= 1; }

}  // namespace

absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(const Options& options) {
  LearningRateSchedule schedule;
  QUARTET_ASSIGN_OR_RETURN(
      schedule.shape_,
      ParseOptionName<Shape>("learning rate scheduler", options.scheduler,
                             {{"constant", Shape::kConstant}, {"linear", Shape::kLinear}, {"cosine", Shape::kCosine}}));
  if (!(options.peak >= 0) || !std::isfinite(options.peak)) {
    return absl::InvalidArgumentError(absl::StrCat("learning rate ", options.peak, " is not a number of at least 0"));
  }
  if (!IsShare(options.warmup_ratio) || !IsShare(options.min_ratio)) {
    return absl::InvalidArgumentError(absl::StrCat("warm-up ratio ", options.warmup_ratio, " and minimum ratio ",
                                                   options.min_ratio, " must lie in [0, 1]"));
  }
  if (options.total_steps <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule of ", options.total_steps, " optimizer steps; at least 1 is needed"));
  }
  if (options.warmup_steps.has_value() && (*options.warmup_steps < 0 || options.warmup_ratio != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("warm-up of ", *options.warmup_steps, " steps with a ratio of ",
                                                   options.warmup_ratio,
                                                   ": steps must be at least 0, and the ratio 0 beside them"));
  }
  schedule.peak_ = options.peak;
  schedule.warmup_steps_ = options.warmup_steps.value_or(
      static_cast<int64_t>(std::ceil(options.warmup_ratio * static_cast<double>(options.total_steps))));
  schedule.total_steps_ = options.total_steps;
  schedule.min_ratio_ = options.min_ratio;
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

#include "core/rl/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

bool IsShare(double x) { return x >= 0 && x <= 1; }

}  // namespace

absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(const Options& options) {
  if (options.scheduler != "cosine" && options.scheduler != "constant") {
    return absl::InvalidArgumentError(absl::StrCat("learning rate scheduler \"", std::string(options.scheduler),
                                                   "\" is not known; allowed: constant, cosine"));
  }
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
  LearningRateSchedule schedule;
  schedule.peak_ = options.peak;
  schedule.cosine_ = options.scheduler == "cosine";
  schedule.warmup_steps_ =
      static_cast<int64_t>(std::ceil(options.warmup_ratio * static_cast<double>(options.total_steps)));
  schedule.total_steps_ = options.total_steps;
  schedule.min_ratio_ = options.min_ratio;
  return schedule;
}

double LearningRateSchedule::At(int64_t step) const {
  step = std::clamp<int64_t>(step, 1, total_steps_);
  if (step < warmup_steps_) return peak_ * static_cast<double>(step) / static_cast<double>(warmup_steps_);
  if (!cosine_) return peak_;
  const double progress = static_cast<double>(step - warmup_steps_) /
                          static_cast<double>(std::max<int64_t>(1, total_steps_ - warmup_steps_));
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return peak_ * (min_ratio_ + (1 - min_ratio_) * cosine);
}

}  // namespace quartet

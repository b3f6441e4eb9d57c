// The learning rate of each optimizer step. Formulas: docs/algorithms.md.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Linear warm-up, then constant, or falling to a floor along a line or a cosine. Immutable.
class LearningRateSchedule {
 public:
  // Peak, warm-up, shape and floor are those of `trainer`; `total_steps` the optimizer steps of the whole run. More
  // steps of warm-up than that: the peak is not reached. INVALID_ARGUMENT for an unknown lr_scheduler, and where there
  // are no steps; ranges are the configuration's checks'.
  static absl::StatusOr<LearningRateSchedule> Create(const TrainerConfig& trainer, int64_t total_steps);

  // Of the `step`-th optimizer step, counted from 1: the first one is not wasted at 0, and the last one of a line or
  // cosine is at the floor. Beyond total_steps the last value stays.
  double At(int64_t step) const;

 private:
  enum class Shape { kConstant, kLinear, kCosine };
  LearningRateSchedule() = default;
  double peak_ = 0;
  Shape shape_ = Shape::kConstant;
  int64_t warmup_steps_ = 0;
  int64_t total_steps_ = 0;
  double min_ratio_ = 0;
};

}  // namespace quartet

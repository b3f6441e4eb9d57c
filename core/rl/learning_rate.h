// The learning rate of each optimizer step. Formulas: docs/algorithms.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace quartet {

// Linear warm-up, then constant, or falling to a floor along a line or a cosine. Immutable.
class LearningRateSchedule {
 public:
  struct Options {
    double peak = 0;
    // "constant", "linear" or "cosine".
    std::string_view scheduler = "cosine";
    // Share of total_steps that warms up; the number of steps is rounded up. In [0, 1].
    double warmup_ratio = 0;
    // Steps that warm up, in place of warmup_ratio, which is 0 then. Not negative; more than total_steps: the peak is
    // not reached.
    std::optional<int64_t> warmup_steps;
    // Floor of the line or cosine, as a share of `peak`. In [0, 1].
    double min_ratio = 0;
    // Optimizer steps of the whole run, greater than 0.
    int64_t total_steps = 0;
  };
  // INVALID_ARGUMENT for what Options does not allow.
  static absl::StatusOr<LearningRateSchedule> Create(const Options& options);

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

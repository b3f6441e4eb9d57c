// How a reward model's values are scaled, as OpenRLHF leaves it in the model's folder. LibTorch-free.
#pragma once

#include "absl/status/statusor.h"
#include "proto/run_config.pb.h"

namespace quartet {

// A reward is (value - mean) / std.
struct RewardScale {
  float mean = 0;
  float std = 1;
};

// With source.normalize_reward "mean" and "std" of config.json; INVALID_ARGUMENT where they are not there or are no
// scale.
absl::StatusOr<RewardScale> ReadRewardScale(const RewardSource& source);

}  // namespace quartet

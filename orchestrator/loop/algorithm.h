// What a run's `algorithm` means to the RL core and to the policy trainer. Of resolved configurations.
#pragma once

#include "absl/status/statusor.h"
#include "core/rl/advantages.h"
#include "proto/policy_trainer.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// `kl_coefficient`: of the step; it is in the rewards or in the loss.
absl::StatusOr<AdvantageOptions> AdvantagesOf(const AlgorithmConfig& algorithm, double kl_coefficient);
PolicyLossConfig PolicyLossOf(const AlgorithmConfig& algorithm, double kl_coefficient);

}  // namespace quartet

// What a run's `algorithm` means to the policy trainer. Of resolved configurations.
#pragma once

#include "proto/policy_trainer.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// `kl_coefficient`: of the step.
PolicyLossConfig PolicyLossOf(const AlgorithmConfig& algorithm, double kl_coefficient);

}  // namespace quartet

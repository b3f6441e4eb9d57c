// What SamplingParams (proto/rollout.proto) mean to the sampler. LibTorch-free.
#pragma once

#include "proto/rollout.pb.h"
#include "rollout/engine/sampling/sampler.h"

namespace quartet {

// Of params that were checked (core/generation/sampling_params.h).
SamplingRule MakeSamplingRule(const SamplingParams& sampling);

}  // namespace quartet

// What the fields of SamplingParams (proto/rollout.proto) may be. LibTorch-free.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/rollout.pb.h"

namespace quartet {

// INVALID_ARGUMENT names field, value and what is allowed.
absl::Status CheckSamplingParams(const SamplingParams& sampling, int64_t vocab_size);

}  // namespace quartet

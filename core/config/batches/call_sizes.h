// How long sequences are, and what the calls of a run bring to its services.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Tokens of prompt and answer together, each as long as it may be.
inline int64_t LongestSequence(const RunConfig& config) {
  return int64_t{config.data().prompt_max_len()} + config.rollout().generate_max_len();
}

// Bytes of memory that a call with all of a step's sequences takes, if each is as long as it may be. Of a configuration
// whose rollout is filled in.
int64_t LargestCallBytes(const RunConfig& config);

// That the services take a step's calls, and an evaluation's of up to `evaluated` sequences at once: INVALID_ARGUMENT
// names the limit. Of a resolved configuration.
absl::Status CheckCallSizes(const RunConfig& config, int64_t evaluated);

}  // namespace quartet

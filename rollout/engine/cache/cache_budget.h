// How much of a device the KV cache may take: rollout.gpu_memory_utilization, as vLLM's. LibTorch-free.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace quartet {

// Bytes of one device.
struct CacheBudget {
  double utilization = 0;     // of all memory of the device: what this process may take
  int64_t device_bytes = 0;   // all of it
  int64_t weights_bytes = 0;  // and whatever else tensors hold before a forward
  int64_t forward_bytes = 0;  // beyond that, at most, in the largest forward
  int64_t graphs_bytes = 0;   // what recorded forwards keep
  int64_t other_bytes = 0;    // in use, but by no tensor of this process
  int64_t least_cache_bytes = 0;
};

// What is left for the cache: at least least_cache_bytes. INVALID_ARGUMENT names the option, its value, what takes the
// memory, and the smallest value with which that fits, in hundredths.
absl::StatusOr<int64_t> CacheBytesWithin(const CacheBudget& budget);

}  // namespace quartet

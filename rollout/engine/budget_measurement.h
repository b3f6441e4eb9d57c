// What takes a device's memory beside the KV cache, found by computing; for rollout.gpu_memory_utilization.
#pragma once

#include "absl/status/statusor.h"
#include "core/memory/ledger.h"
#include "rollout/engine/cache/cache_budget.h"
#include "rollout/engine/cache/kv_cache.h"
#include "rollout/engine/engine.h"
#include "rollout/engine/forward_pass.h"

namespace quartet {

// Makes the largest forward that `options` allow, and recordings, over the smallest cache of `shape`; afterwards
// `forward`, which has none before, has none. On the meta device counts them for a device as `planned`. Errors name
// what ran out of memory. With zero_stage 3 and tensor-parallel ranks a collective. A cache of fewer than
// `least_blocks` blocks is of no use.
absl::StatusOr<CacheBudget> MeasureCacheBudget(const RolloutConfig& options, const PlannedDevice& planned,
                                               const KvCacheShape& shape, int64_t least_blocks, at::Device device,
                                               ForwardPass* forward, Ledger* ledger);

}  // namespace quartet

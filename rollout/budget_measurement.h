// What takes a device's memory beside the KV cache, found by computing; for rollout.gpu_memory_utilization.
#pragma once

#include "absl/status/statusor.h"
#include "core/zero/ledger.h"
#include "rollout/cache_budget.h"
#include "rollout/engine.h"
#include "rollout/forward_pass.h"
#include "rollout/kv_cache.h"

namespace quartet {

// Makes the largest forward that `options` allow, and recordings, over the smallest cache of `shape`; afterwards
// `forward`, which has none before, has none. On the meta device counts them. Errors name what ran out of memory. With
// zero_stage 3 and tensor-parallel ranks a collective.
absl::StatusOr<CacheBudget> MeasureCacheBudget(const RolloutEngineOptions& options, const KvCacheShape& shape,
                                               at::Device device, ForwardPass* forward, Ledger* ledger);

}  // namespace quartet

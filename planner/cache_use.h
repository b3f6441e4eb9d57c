// What the rollout's KV cache holds, against what a step could run at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/plan.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Of one engine, in sequences of the greatest length.
struct CacheUse {
  int64_t tokens = 0;     // of a sequence: prompt and answer
  int64_t held = 0;       // at once
  int64_t could_run = 0;  // of its part of a step, were the cache large enough
};

// `rollout` is the rollout's plan, of `config`.
CacheUse CacheUseOf(const RunConfig& config, const ServicePlan& rollout);

// Where the cache of `plan` holds less than could run: the option that makes it hold all, or as many as there is room
// for on the GPUs (or hosts) of the rollout.
struct LargerCache {
  std::string override_text;  // "rollout.kv_cache_bytes=..."
  int64_t held = 0;           // then
};
std::optional<LargerCache> FindLargerCache(const RunConfig& config, const Plan& plan);

}  // namespace quartet

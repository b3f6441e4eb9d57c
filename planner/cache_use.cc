#include "planner/cache_use.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/config/batches/call_sizes.h"

namespace quartet {
namespace {

int64_t BlocksOf(const RunConfig& config, int64_t tokens) {
  return (tokens + config.rollout().block_size() - 1) / config.rollout().block_size();
}

// That each rollout rank could have beside what is planned.
int64_t RoomOf(const Plan& plan, bool on_gpu) {
  int64_t room = std::numeric_limits<int64_t>::max();
  for (const PlaceUse& place : on_gpu ? plan.devices : plan.hosts) {
    const auto ranks = place.ranks.find("rollout");
    if (ranks == place.ranks.end() || place.capacity == 0) continue;
    room = std::min(room, std::max<int64_t>(0, place.room()) / ranks->second);
  }
  return room;
}

}  // namespace

CacheUse CacheUseOf(const RunConfig& config, const ServicePlan& rollout) {
  const RolloutConfig& r = config.rollout();
  const int64_t engines = rollout.ranks / r.tensor_parallel_size();
  const int64_t sequences =
      HasAgent(config) ? config.agent().processes() : int64_t{r.rollout_batch_size()} * r.n_samples_per_prompt();
  CacheUse use;
  use.tokens = LongestSequence(config);
  use.held = rollout.use.kv_cache_blocks / BlocksOf(config, use.tokens);
  use.could_run = std::min<int64_t>(
      {(sequences + engines - 1) / engines, int64_t{r.max_num_seqs()}, int64_t{r.max_num_batched_tokens()}});
  return use;
}

std::optional<LargerCache> FindLargerCache(const RunConfig& config, const Plan& plan) {
  for (const ServicePlan& service : plan.services) {
    if (service.service != "rollout") continue;
    const CacheUse use = CacheUseOf(config, service);
    if (use.held >= use.could_run) return std::nullopt;
    const int64_t block_bytes = service.use.kv_cache_bytes / service.use.kv_cache_blocks;
    const int64_t sequence_bytes = block_bytes * BlocksOf(config, use.tokens);
    const int64_t needed = (use.could_run - use.held) * sequence_bytes;
    const int64_t room = RoomOf(plan, service.on_gpu);
    LargerCache larger;
    int64_t more = std::min(needed, room / sequence_bytes * sequence_bytes);
    if (config.rollout().has_gpu_memory_utilization()) {
      const auto capacity = static_cast<double>(GpuCapacity(config));
      const double share = config.rollout().gpu_memory_utilization();
      const auto hundredths = [&](int64_t bytes) { return 100 * (share + static_cast<double>(bytes) / capacity); };
      const double raised = std::min({std::ceil(hundredths(needed)), std::floor(hundredths(room)), 100.0}) / 100;
      more = std::min(needed, static_cast<int64_t>((raised - share) * capacity));
      larger.override_text = absl::StrFormat("rollout.gpu_memory_utilization=%.2f", raised);
    } else {
      larger.override_text = absl::StrCat("rollout.kv_cache_bytes=", service.use.kv_cache_bytes + more);
    }
    if (more < sequence_bytes) return std::nullopt;
    larger.held = use.held + more / sequence_bytes;
    return larger;
  }
  return std::nullopt;
}

}  // namespace quartet

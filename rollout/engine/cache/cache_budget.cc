#include "rollout/engine/cache/cache_budget.h"

#include <cmath>

#include "absl/strings/str_format.h"

namespace quartet {

absl::StatusOr<int64_t> CacheBytesWithin(const CacheBudget& budget) {
  const auto device = static_cast<double>(budget.device_bytes);
  const auto share = static_cast<int64_t>(budget.utilization * device);
  const int64_t taken = budget.weights_bytes + budget.forward_bytes + budget.graphs_bytes + budget.other_bytes;
  if (share - taken >= budget.least_cache_bytes) return share - taken;
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  const double least = std::ceil(100 * static_cast<double>(taken + budget.least_cache_bytes) / device) / 100;
  return absl::InvalidArgumentError(absl::StrFormat(
      "rollout.gpu_memory_utilization is %g, %.3f GiB of the device's %.3f; weights take %.3f, the largest forward "
      "%.3f, recorded forwards %.3f, what is no tensor of this process %.3f, the smallest cache %.3f; %s",
      budget.utilization, gib(share), gib(budget.device_bytes), gib(budget.weights_bytes), gib(budget.forward_bytes),
      gib(budget.graphs_bytes), gib(budget.other_bytes), gib(budget.least_cache_bytes),
      least <= 1 ? absl::StrFormat("allowed: at least %.2f", least)
                 : "no value is enough on this device: set a smaller rollout.max_num_batched_tokens, "
                   "rollout.max_num_seqs or rollout.max_model_len, rollout.enforce_eager, rollout.zero_stage 3 or "
                   "rollout.tensor_parallel_size"));
}

}  // namespace quartet

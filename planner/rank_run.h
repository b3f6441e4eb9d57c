// One rank of a service, run on the meta device: the engine's own code in an order that takes the most memory, and what
// its ledger and its process groups then tell. LibTorch behind, not in, this header.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/run_config.h"
#include "core/memory/ledger.h"
#include "core/rank/rank_context.h"
#include "proto/common.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Peaks of one tier.
struct TierUse {
  std::array<int64_t, kNumMemoryCategories> categories{};
  int64_t total = 0;   // of all categories at once: at most their sum
  int64_t asleep = 0;  // not a peak: what is held after Sleep, at level 2 where rollout.enable_sleep would have it so
};

// What one rank sends in the collectives of one group of ranks during a PPO step.
struct GroupTraffic {
  int ranks = 0;   // in the group
  int stride = 1;  // between neighbours: 1, or, for ranks with the same shard, the size of a shard group
  int64_t sent_bytes = 0;
};

struct RankUse {
  std::array<TierUse, kNumMemoryTiers> tiers;
  std::vector<GroupTraffic> traffic;
  int64_t kv_cache_bytes = 0;  // of a rollout rank, and into how many blocks of rollout.block_size tokens they go
  int64_t kv_cache_blocks = 0;

  const TierUse& device() const { return tiers[static_cast<int>(MemoryTier::kDevice)]; }
  const TierUse& host() const { return tiers[static_cast<int>(MemoryTier::kHost)]; }
};

// Peaks as a rank tells them in GetInfo.
std::array<TierUse, kNumMemoryTiers> TiersOf(const RankInfo& info);

// What a rank of a service can have for tensors on a GPU; for rollout.gpu_memory_utilization.
struct GpuRoom {
  int64_t memory_bytes = 0;
  int64_t outside_tensors = 0;
};

// Takes the rank of `context` (its service, rank and size count) through one PPO step and the beginning of the next, or
// a step of the run that `program` makes (kSft, kDpo, kRewardModel), with sequences of the greatest length that
// `config`, which is resolved, allows. With context.device "meta" that takes no memory, and of the models only
// config.json is read; on "cpu" it is a real run to hold a plan against, which all ranks must make. Errors are those of
// the engines.
absl::StatusOr<RankUse> RunRank(const RunConfig& config, const RankContext& context, const GpuRoom& room,
                                Program program = Program::kPpo);

// The same on the meta device, which stands for the device that the service has in `config`.
absl::StatusOr<RankUse> RunRankDry(const RunConfig& config, const std::string& service, int rank, const GpuRoom& room,
                                   Program program = Program::kPpo);

// Whether `service` has a model to run at all.
bool HasEngine(const RunConfig& config, const std::string& service);

}  // namespace quartet

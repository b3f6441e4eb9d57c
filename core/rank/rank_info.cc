#include "core/rank/rank_info.h"

#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "core/base/logging.h"
#include "core/kernels/cpu/products/gemm.h"
#include "core/memory/block_cache.h"

namespace quartet {

void SetBudgets(const RankContext& context, Ledger* ledger) {
  ledger->SetBudget(MemoryTier::kDevice, context.device_memory_budget);
  ledger->SetBudget(MemoryTier::kHost, context.host_memory_budget);
}

RankInfo DescribeRank(const RankContext& context, const Ledger& ledger) {
  RankInfo info;
  info.set_rank(context.rank);
  info.set_endpoint(context.endpoint);
  info.set_pid(getpid());
  for (const MemoryTier tier : {MemoryTier::kDevice, MemoryTier::kHost}) {
    const std::string name(MemoryTierName(tier));
    for (int i = 0; i < kNumMemoryCategories; ++i) {
      const auto category = static_cast<MemoryCategory>(i);
      if (tier == MemoryTier::kHost && ledger.peak(category, tier) == 0) continue;
      MemoryUse* use = info.add_memory();
      use->set_category(std::string(MemoryCategoryName(category)));
      use->set_tier(name);
      use->set_current_bytes(ledger.current(category, tier));
      use->set_peak_bytes(ledger.peak(category, tier));
    }
    MemoryTotal* total = info.add_memory_totals();
    total->set_tier(name);
    total->set_current_bytes(ledger.total(tier));
    total->set_peak_bytes(ledger.peak_total(tier));
    total->set_budget_bytes(ledger.budget(tier));
  }
  if (context.device != "meta") {
    const BlockCache::Stats blocks = HostBlocks().stats();
    MemoryUse* freed = info.add_memory();
    freed->set_category("freed");
    freed->set_tier(std::string(MemoryTierName(context.device == "cuda" ? MemoryTier::kHost : MemoryTier::kDevice)));
    freed->set_current_bytes(static_cast<int64_t>(blocks.free));
    freed->set_peak_bytes(static_cast<int64_t>(blocks.peak_held - blocks.peak_in_use));
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  info.set_peak_rss_bytes(int64_t{usage.ru_maxrss} * 1024);  // Linux counts KiB
  return info;
}

void DescribeCpuKernels(const RankContext& context, RankInfo* info) {
  if (context.device != "cpu") return;
  info->set_cpu_kernels(std::string(CpuKernels()));
  [[maybe_unused]] static const bool said = [] {
    QUARTET_LOG(kInfo) << "bf16 products are made by " << CpuKernels() << " (QUARTET_CPU_KERNELS chooses)";
    return true;
  }();
}

}  // namespace quartet

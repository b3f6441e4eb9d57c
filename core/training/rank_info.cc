#include "core/training/rank_info.h"

#include <sys/resource.h>
#include <unistd.h>

#include <string>

namespace quartet {

RankInfo DescribeRank(const RankContext& context, const Ledger& ledger) {
  RankInfo info;
  info.set_rank(context.rank);
  info.set_endpoint(context.endpoint);
  info.set_pid(getpid());
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    MemoryUse* use = info.add_memory();
    use->set_category(std::string(MemoryCategoryName(category)));
    use->set_current_bytes(ledger.current(category));
    use->set_peak_bytes(ledger.peak(category));
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  info.set_peak_rss_bytes(int64_t{usage.ru_maxrss} * 1024);  // Linux counts KiB
  return info;
}

}  // namespace quartet

#include "core/rl/rewards.h"

#include <algorithm>
#include <numeric>

#include "core/base/logging.h"
#include "core/rl/options/option_name.h"

namespace quartet {

double OverlongPenalty(int64_t tokens, int64_t max_new_tokens, int64_t buffer, double factor) {
  QUARTET_CHECK(0 < buffer && buffer <= max_new_tokens && factor >= 0)
      << buffer << " of " << max_new_tokens << ", factor " << factor;
  const int64_t excess = std::clamp<int64_t>(tokens - (max_new_tokens - buffer), 0, buffer);
  return excess == 0 ? 0 : -static_cast<double>(excess) / static_cast<double>(buffer) * factor;
}

absl::StatusOr<GroupFilter> ParseGroupFilter(std::string_view name) {
  return ParseOptionName<GroupFilter>(
      "group filter", name,
      {{"none", GroupFilter::kNone}, {"not_equal", GroupFilter::kNotEqual}, {"mean_inside", GroupFilter::kMeanInside}});
}

bool KeepsGroup(std::span<const double> metrics, GroupFilter filter, double low, double high) {
  QUARTET_CHECK(!metrics.empty());
  switch (filter) {
    case GroupFilter::kNone:
      return true;
    case GroupFilter::kNotEqual:
      return std::ranges::any_of(metrics, [&](double x) { return x != metrics.front(); });
    case GroupFilter::kMeanInside: {
      const double mean = std::accumulate(metrics.begin(), metrics.end(), 0.0) / static_cast<double>(metrics.size());
      return low < mean && mean < high;
    }
  }
  return true;
}

}  // namespace quartet

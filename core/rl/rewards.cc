#include "core/rl/rewards.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/logging.h"
#include "core/rl/options/moments.h"
#include "core/rl/options/option_name.h"

namespace quartet {

double AddRewards(std::span<const double> parts) {
  double sum = 0, size = 0;
  for (const double part : parts) {
    sum += part;
    size += std::abs(part);
  }
  return std::abs(sum) > kRounding * size ? sum : 0;
}

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
      return !AreEqual(metrics);
    case GroupFilter::kMeanInside: {
      const double mean = std::accumulate(metrics.begin(), metrics.end(), 0.0) / static_cast<double>(metrics.size());
      return IsAbove(mean, low) && IsAbove(high, mean);
    }
  }
  return true;
}

}  // namespace quartet

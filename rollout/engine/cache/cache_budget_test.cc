#include "rollout/engine/cache/cache_budget.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

CacheBudget Budget(double utilization) {
  return {.utilization = utilization,
          .device_bytes = 80 * kGiB,
          .weights_bytes = 14 * kGiB,
          .forward_bytes = 2 * kGiB,
          .graphs_bytes = kGiB,
          .other_bytes = kGiB,
          .least_cache_bytes = kGiB / 16};
}

TEST(CacheBudget, IsWhatTheShareLeaves) {
  EXPECT_EQ(*CacheBytesWithin(Budget(0.5)), 22 * kGiB);
  EXPECT_EQ(*CacheBytesWithin(Budget(1)), 62 * kGiB);
}

TEST(CacheBudget, OfLessThanOneBlockNamesTheSmallestShareThatIsEnough) {
  const auto none = CacheBytesWithin(Budget(0.22));
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.status().message()),
              AllOf(HasSubstr("rollout.gpu_memory_utilization is 0.22"), HasSubstr("weights take 14.000"),
                    HasSubstr("largest forward 2.000"), HasSubstr("recorded forwards 1.000"),
                    HasSubstr("no tensor of this process 1.000"), HasSubstr("allowed: at least 0.23")));
  EXPECT_GE(*CacheBytesWithin(Budget(0.23)), kGiB / 16);
}

TEST(CacheBudget, OfADeviceThatIsTooSmallSaysWhatWouldHelp) {
  CacheBudget budget = Budget(0.9);
  budget.device_bytes = 16 * kGiB;
  EXPECT_THAT(std::string(CacheBytesWithin(budget).status().message()),
              AllOf(HasSubstr("no value is enough"), HasSubstr("rollout.max_num_batched_tokens")));
}

}  // namespace
}  // namespace quartet

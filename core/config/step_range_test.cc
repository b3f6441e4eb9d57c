#include "core/config/step_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

TEST(StepRange, IsOneStepOrSeveral) {
  const absl::StatusOr<StepRange> one = ParseStepRange("train.trace_steps", "10");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->first, 10);
  EXPECT_EQ(one->last, 10);
  const absl::StatusOr<StepRange> several = ParseStepRange("train.trace_steps", "0-12");
  ASSERT_TRUE(several.ok()) << several.status();
  EXPECT_TRUE(several->contains(0));
  EXPECT_TRUE(several->contains(12));
  EXPECT_FALSE(several->contains(13));
}

TEST(StepRange, RefusesWhatNamesNoSteps) {
  for (const char* text : {"", "-1", "3-", "-", "5-4", "1-2-3", "first", "1.5", "99999999999999999999"}) {
    const absl::Status status = ParseStepRange("train.trace_steps", text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(testing::HasSubstr("train.trace_steps"), testing::HasSubstr(text),
                               testing::HasSubstr("\"10-12\"")));
  }
}

TEST(DescribeSteps, CountsFromOneAndJoinsWhatIsInARow) {
  EXPECT_EQ(DescribeSteps({2, 3, 4, 8}), "3 to 5, 9");
  EXPECT_EQ(DescribeSteps({0}), "1");
  EXPECT_EQ(DescribeSteps({}), "");
}

}  // namespace
}  // namespace quartet

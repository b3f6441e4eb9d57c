#include "core/base/time/time_left.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

TEST(TimeLeft, IsNotKnownFromTheFirstStepAlone) {
  TimeLeft time_left;
  EXPECT_EQ(time_left.Of(5), std::nullopt);
  time_left.AddStep(absl::Hours(9));
  EXPECT_EQ(time_left.Of(5), std::nullopt);
  time_left.AddStep(absl::Seconds(2));
  EXPECT_EQ(time_left.Of(5), absl::Seconds(10)) << "the first step does not count";
  time_left.AddStep(absl::Seconds(4));
  EXPECT_EQ(time_left.Of(5), absl::Seconds(15));
  EXPECT_EQ(time_left.Of(0), absl::ZeroDuration());
}

TEST(TimeLeft, FollowsTheLatestTenSteps) {
  TimeLeft time_left;
  for (int i = 0; i < 50; ++i) time_left.AddStep(absl::Seconds(1));
  for (int i = 0; i < 5; ++i) time_left.AddStep(absl::Seconds(3));
  EXPECT_EQ(time_left.Of(10), absl::Seconds(20));
  for (int i = 0; i < 5; ++i) time_left.AddStep(absl::Seconds(3));
  EXPECT_EQ(time_left.Of(10), absl::Seconds(30));
}

TEST(TimeLeft, IsSaidWhereItIsKnownAndThereIsMoreToDo) {
  TimeLeft time_left;
  time_left.AddStep(absl::Seconds(1));
  EXPECT_EQ(time_left.Text(", ", 5), "");
  time_left.AddStep(absl::Seconds(1));
  EXPECT_EQ(time_left.Text(", ", 5), ", 5 s left");
  EXPECT_EQ(time_left.Text(", ", 0), "");
}

TEST(TimeLeft, OfPartsIsThatAtTheRateSoFar) {
  EXPECT_EQ(TimeLeftAtRate(3, 12, absl::Seconds(30)), "1 m 30 s left");
  EXPECT_EQ(TimeLeftAtRate(3, 12, absl::Milliseconds(1900)), "") << "too early";
  EXPECT_EQ(TimeLeftAtRate(3, 4, absl::Seconds(30)), "") << "too few";
  EXPECT_EQ(TimeLeftAtRate(0, 12, absl::Seconds(30)), "");
  EXPECT_EQ(TimeLeftAtRate(12, 12, absl::Seconds(30)), "");
}

TEST(TimeLeft, IsSaidInTheTwoLargestUnits) {
  EXPECT_EQ(FormatTimeLeft(absl::Milliseconds(400)), "0 s left");
  EXPECT_EQ(FormatTimeLeft(absl::Milliseconds(44600)), "45 s left");
  EXPECT_EQ(FormatTimeLeft(absl::Milliseconds(59600)), "1 m 00 s left");
  EXPECT_EQ(FormatTimeLeft(absl::Seconds(200)), "3 m 20 s left");
  EXPECT_EQ(FormatTimeLeft(absl::Minutes(125)), "2 h 05 m left");
  EXPECT_EQ(FormatTimeLeft(absl::Hours(99)), "4 d 03 h left");
}

}  // namespace
}  // namespace quartet

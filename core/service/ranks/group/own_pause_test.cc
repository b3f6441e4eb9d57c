#include "core/service/ranks/group/own_pause.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

TEST(OwnPause, IsAGapBetweenBeatsForAsLongAsOthersMayTakeItForAnEnd) {
  OwnPause::Clock::time_point now;
  OwnPause pause(absl::Seconds(1), 3, [&now] { return now; });
  EXPECT_FALSE(pause.Beat());
  now += std::chrono::milliseconds(1500);
  EXPECT_EQ(pause.Recent(), absl::ZeroDuration());
  now += std::chrono::milliseconds(2500);
  EXPECT_EQ(pause.Recent(), absl::Seconds(4)) << "before the next one";
  EXPECT_TRUE(pause.Beat());
  EXPECT_FALSE(pause.Beat());
  EXPECT_EQ(pause.Recent(), absl::Seconds(4));
  pause.Beat();
  EXPECT_EQ(pause.Recent(), absl::ZeroDuration());
}

TEST(OwnPause, MayComeBeforeTheFirstBeat) {
  OwnPause::Clock::time_point now;
  OwnPause pause(absl::Seconds(1), 3, [&now] { return now; });
  now += std::chrono::seconds(4);
  EXPECT_EQ(pause.Recent(), absl::Seconds(4));
  pause.Beat();
  EXPECT_EQ(pause.Recent(), absl::Seconds(4));
}

// Others count from when they last heard: two stops are one to them where nothing was heard between.
TEST(OwnPause, IsSeenInEachOfTwoThatTogetherAreTooLong) {
  OwnPause::Clock::time_point now;
  OwnPause pause(absl::Seconds(1), 10, [&now] { return now; });
  for (int stop = 0; stop < 2; ++stop) {
    now += std::chrono::seconds(6);
    EXPECT_TRUE(pause.Beat());
  }
  EXPECT_EQ(pause.Recent(), absl::Seconds(6));
}

}  // namespace
}  // namespace quartet

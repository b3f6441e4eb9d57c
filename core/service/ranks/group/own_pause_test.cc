#include "core/service/ranks/group/own_pause.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

TEST(OwnPause, IsAGapBetweenBeatsForAsLongAsOthersMayTakeItForAnEnd) {
  OwnPause::Clock::time_point now;
  OwnPause pause(absl::Seconds(1), 3, [&now] { return now; });
  now += std::chrono::seconds(60);
  EXPECT_EQ(pause.Recent(), absl::ZeroDuration()) << "before the first beat";
  pause.Beat();
  now += std::chrono::seconds(3);
  EXPECT_EQ(pause.Recent(), absl::ZeroDuration());
  now += std::chrono::seconds(1);
  EXPECT_EQ(pause.Recent(), absl::Seconds(4)) << "before the next one";
  pause.Beat();
  pause.Beat();
  EXPECT_EQ(pause.Recent(), absl::Seconds(4));
  pause.Beat();
  EXPECT_EQ(pause.Recent(), absl::ZeroDuration());
}

}  // namespace
}  // namespace quartet

#include "core/service/ranks/group/liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::HasSubstr;

class LivenessTest : public ::testing::Test {
 protected:
  void Heartbeat(int heartbeats) {
    for (; heartbeats > 0; --heartbeats) {
      now_ += std::chrono::seconds(1);
      liveness_.Heartbeat();
    }
  }
  void StopFor(int seconds) { now_ += std::chrono::seconds(seconds); }

  Liveness::Clock::time_point now_;
  Liveness liveness_{2, absl::Seconds(1), [this] { return now_; }};
};

TEST_F(LivenessTest, GivesUpARankThatHasNotBeenHeardForTooManyHeartbeats) {
  Heartbeat(20);
  liveness_.Heard(1);
  Heartbeat(25);
  EXPECT_FALSE(liveness_.IsTooLong(1));
  EXPECT_EQ(liveness_.FateOf(1), "is gone") << "if its lane ends now";
  Heartbeat(1);
  EXPECT_TRUE(liveness_.IsTooLong(1));
  EXPECT_EQ(liveness_.FateOf(1), "has not answered for 25s: it is stopped, or its host is gone");
}

TEST_F(LivenessTest, ARankThatWasStoppedTakesNobodyForGoneForAsLongAsItMayHaveBeenGivenUp) {
  Heartbeat(24);
  StopFor(30);
  const std::string stopped = "has ended while this rank did not run, for 30s: this one was stopped";
  EXPECT_EQ(liveness_.FateOf(1), stopped) << "before the next heartbeat";
  liveness_.Heartbeat();
  EXPECT_EQ(liveness_.FateOf(1), stopped);
  Heartbeat(24);
  EXPECT_EQ(liveness_.FateOf(1), stopped);
  EXPECT_FALSE(liveness_.IsTooLong(1)) << "of what it has waited since";
  liveness_.Heard(1);
  Heartbeat(1);
  EXPECT_EQ(liveness_.FateOf(1), "is gone");
}

TEST_F(LivenessTest, OneMayBeStoppedBeforeItsFirstBeat) {
  StopFor(30);
  EXPECT_THAT(liveness_.FateOf(1), HasSubstr("this one was stopped"));
  liveness_.Heartbeat();
  EXPECT_THAT(liveness_.FateOf(1), HasSubstr("this one was stopped"));
}

// Others count from when they last heard: two stops are one to them where nothing was heard between.
TEST_F(LivenessTest, OneMayBeStoppedTwiceUntilTheOthersGiveItUp) {
  for (int stop = 0; stop < 2; ++stop) {
    StopFor(13);
    liveness_.Heartbeat();
    EXPECT_THAT(liveness_.FateOf(1), HasSubstr("did not run, for 13s: this one was stopped"));
  }
}

}  // namespace
}  // namespace quartet

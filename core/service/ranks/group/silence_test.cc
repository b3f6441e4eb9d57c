#include "core/service/ranks/group/silence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::HasSubstr;

class SilenceTest : public ::testing::Test {
 protected:
  void Beat(int beats) {
    for (; beats > 0; --beats) {
      now_ += std::chrono::seconds(1);
      silence_.Beat();
    }
  }
  void StopFor(int seconds) { now_ += std::chrono::seconds(seconds); }

  Silence::Clock::time_point now_;
  Silence silence_{2, absl::Seconds(1), [this] { return now_; }};
};

TEST_F(SilenceTest, GivesUpARankThatHasNotBeenHeardForTooManyBeats) {
  Beat(20);
  silence_.Heard(1);
  Beat(25);
  EXPECT_FALSE(silence_.IsTooLong(1));
  EXPECT_EQ(silence_.FateOf(1), "is gone") << "if its lane ends now";
  Beat(1);
  EXPECT_TRUE(silence_.IsTooLong(1));
  EXPECT_EQ(silence_.FateOf(1), "has not answered for 25s: it is stopped, or its host is gone");
}

TEST_F(SilenceTest, ARankThatWasStoppedTakesNobodyForGoneForAsLongAsItMayHaveBeenGivenUp) {
  Beat(24);
  StopFor(30);
  const std::string stopped = "has ended while this rank did not run, for 30s: this one was stopped";
  EXPECT_EQ(silence_.FateOf(1), stopped) << "before the next beat";
  silence_.Beat();
  EXPECT_EQ(silence_.FateOf(1), stopped);
  Beat(24);
  EXPECT_EQ(silence_.FateOf(1), stopped);
  EXPECT_FALSE(silence_.IsTooLong(1)) << "of what it has waited since";
  silence_.Heard(1);
  Beat(1);
  EXPECT_EQ(silence_.FateOf(1), "is gone");
}

TEST_F(SilenceTest, OneMayBeStoppedBeforeItsFirstBeat) {
  StopFor(30);
  EXPECT_THAT(silence_.FateOf(1), HasSubstr("this one was stopped"));
  silence_.Beat();
  EXPECT_THAT(silence_.FateOf(1), HasSubstr("this one was stopped"));
}

// Others count from when they last heard: two stops are one to them where nothing was heard between.
TEST_F(SilenceTest, OneMayBeStoppedTwiceUntilTheOthersGiveItUp) {
  for (int stop = 0; stop < 2; ++stop) {
    StopFor(13);
    silence_.Beat();
    EXPECT_THAT(silence_.FateOf(1), HasSubstr("did not run, for 13s: this one was stopped"));
  }
}

}  // namespace
}  // namespace quartet

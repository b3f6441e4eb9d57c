#include "core/base/fail_point.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace quartet {
namespace {

TEST(FailPoint, DoesNothingUnlessItIsNamed) {
  ASSERT_TRUE(SetFailPoints("").ok());
  EXPECT_TRUE(FailPoint("a.b").ok());
  EXPECT_FALSE(FailPointArmed("a.b"));
}

TEST(FailPoint, FiresOnEveryPassOrOnTheOneThatIsAskedFor) {
  ASSERT_TRUE(SetFailPoints("a.every=error,a.second=error@2,a.trip=trip@1,a.nap=sleep:1").ok());
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(FailPoint("a.every").code(), absl::StatusCode::kInternal);
    EXPECT_EQ(FailPoint("a.second").ok(), i != 2) << i;
    EXPECT_EQ(FailPointArmed("a.trip"), i == 1) << i;
    EXPECT_TRUE(FailPoint("a.nap").ok());
    EXPECT_TRUE(FailPoint("a.other").ok());
  }
}

TEST(FailPoint, ThrowsWhereErrorsAreExceptions) {
  ASSERT_TRUE(SetFailPoints("a.second=error@2").ok());
  EXPECT_NO_THROW(ThrowAtFailPoint("a.second"));
  EXPECT_THROW(ThrowAtFailPoint("a.second"), std::runtime_error);
}

TEST(FailPoint, RefusesWhatItDoesNotUnderstand) {
  for (const char* bad :
       {"a", "a=", "a=boom", "a=error@0", "a=error@", "a=sleep:", "a=sleep:-1", "=kill", "a=error,a=kill"}) {
    EXPECT_EQ(SetFailPoints(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(FailPointDeathTest, KillsTheProcess) {
  ASSERT_TRUE(SetFailPoints("a.kill=kill@2").ok());
  EXPECT_TRUE(FailPoint("a.kill").ok());
  EXPECT_EXIT((void)FailPoint("a.kill"), ::testing::KilledBySignal(SIGKILL), "fail point a.kill, pass 2");
}

}  // namespace
}  // namespace quartet

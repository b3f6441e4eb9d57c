#include "core/base/time/deadline.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

TEST(Deadline, CountsDownToNothing) {
  const Deadline soon = Deadline::In(absl::Hours(1));
  EXPECT_FALSE(soon.passed());
  EXPECT_LE(soon.left(), absl::Hours(1));
  EXPECT_GT(soon.left(), absl::Minutes(50));
  for (const absl::Duration past : {absl::ZeroDuration(), absl::Seconds(-5), -absl::InfiniteDuration()}) {
    EXPECT_TRUE(Deadline::In(past).passed()) << past;
    EXPECT_EQ(Deadline::In(past).left(), absl::ZeroDuration()) << past;
  }
}

TEST(Deadline, MayNeverCome) {
  EXPECT_TRUE(Deadline::In(absl::InfiniteDuration()).never());
  EXPECT_FALSE(Deadline::Never().passed());
  EXPECT_EQ(Deadline::Never().left(), absl::InfiniteDuration());
  EXPECT_LT(Deadline::In(absl::Hours(24 * 365)), Deadline::Never());
  EXPECT_LT(Deadline::In(absl::Seconds(1)), Deadline::In(absl::Seconds(100)));
}

}  // namespace
}  // namespace quartet

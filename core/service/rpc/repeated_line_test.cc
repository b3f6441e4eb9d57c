#include "core/service/rpc/repeated_line.h"

#include <chrono>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace quartet {
namespace {

using std::chrono::seconds;

TEST(RepeatedLine, ComesAtOnceAndThenOnceAMinuteWithANumber) {
  RepeatedLine refused;
  const RepeatedLine::Time start;
  EXPECT_FALSE(refused.waits());
  EXPECT_EQ(refused.Happened("refused 0", start), "refused 0");
  for (int i = 1; i < 60'000; ++i) {
    ASSERT_EQ(refused.Happened("refused " + std::to_string(i), start + std::chrono::milliseconds(i)), std::nullopt);
  }
  EXPECT_EQ(refused.Happened("refused 60000", start + seconds(60)),
            "refused 60000 (the last of 60000 like it since the line before)");
  EXPECT_EQ(refused.Happened("refused again", start + seconds(61)), std::nullopt);
}

TEST(RepeatedLine, TellsTheRestWhereNothingMoreHappens) {
  RepeatedLine refused;
  const RepeatedLine::Time start;
  refused.Happened("refused 0", start);
  refused.Happened("refused 1", start + seconds(1));
  EXPECT_TRUE(refused.waits());
  EXPECT_EQ(refused.Due(start + seconds(59)), std::nullopt);
  EXPECT_EQ(refused.Due(start + seconds(60)), "refused 1 (the last of 1 like it since the line before)");
  EXPECT_TRUE(refused.waits());
  EXPECT_EQ(refused.Due(start + seconds(120)), std::nullopt);
  // A minute of nothing: the next is the first again.
  EXPECT_FALSE(refused.waits());
  EXPECT_EQ(refused.Happened("refused 2", start + seconds(121)), "refused 2");
}

}  // namespace
}  // namespace quartet

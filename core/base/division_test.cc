#include "core/base/division.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace quartet {
namespace {

TEST(Division, CountsThePartThatIsNotFull) {
  EXPECT_EQ(CeilDivide(0, 4), 0);
  EXPECT_EQ(CeilDivide(1, 4), 1);
  EXPECT_EQ(CeilDivide(4, 4), 1);
  EXPECT_EQ(CeilDivide(5, 4), 2);
}

TEST(Division, RoundsUpToAMultiple) {
  EXPECT_EQ(RoundUp(0, 256), 0);
  EXPECT_EQ(RoundUp(1, 256), 256);
  EXPECT_EQ(RoundUp(256, 256), 256);
  EXPECT_EQ(RoundUp(257, 256), 512);
}

TEST(Division, CountsInTheWiderOfTwoTypes) {
  constexpr int64_t kMany = int64_t{1} << 40;
  static_assert(CeilDivide(kMany + 1, 2) == kMany / 2 + 1);
  static_assert(RoundUp(3, kMany) == kMany);
}

}  // namespace
}  // namespace quartet

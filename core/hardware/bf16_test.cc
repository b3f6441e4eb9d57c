#include "core/hardware/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quartet {
namespace {

TEST(Bf16, IsEveryNumberThatItHolds) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float value = FromBf16(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) {
      ASSERT_EQ(ToBf16(value), bits);
    }
  }
}

TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  const float step = std::ldexp(1.0f, -7);  // between bf16's numbers from 1 to 2
  EXPECT_EQ(FromBf16(ToBf16(1 + 0.49f * step)), 1);
  EXPECT_EQ(FromBf16(ToBf16(1 + 0.5f * step)), 1);
  EXPECT_EQ(FromBf16(ToBf16(1 + 0.51f * step)), 1 + step);
  EXPECT_EQ(FromBf16(ToBf16(1 + 1.5f * step)), 1 + 2 * step);
  EXPECT_EQ(FromBf16(ToBf16(-1 - 1.5f * step)), -1 - 2 * step);
  EXPECT_EQ(FromBf16(ToBf16(std::numeric_limits<float>::max())), std::numeric_limits<float>::infinity());
}

TEST(Bf16, KeepsNaN) {
  for (const uint32_t bits : {0x7F800001u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    EXPECT_TRUE(std::isnan(FromBf16(ToBf16(std::bit_cast<float>(bits))))) << bits;
  }
}

}  // namespace
}  // namespace quartet

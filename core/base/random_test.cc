#include "core/base/random.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

TEST(RandomHexDigits, AreEightAWordAndOthersEachTime) {
  const std::string digits = RandomHexDigits(4);
  EXPECT_EQ(digits.size(), 32U);
  EXPECT_EQ(digits.find_first_not_of("0123456789abcdef"), std::string::npos) << digits;
  EXPECT_NE(RandomHexDigits(4), digits);
}

}  // namespace
}  // namespace quartet

#include "core/base/hash_text.h"

#include <gtest/gtest.h>

#include <string>

namespace quartet {
namespace {

TEST(HashText, IsReadBackFromItsText) {
  for (const uint64_t hash : {uint64_t{0}, uint64_t{0x4b0c54184ef00d85}, ~uint64_t{0}}) {
    EXPECT_EQ(ParseHash(HashText(hash)), hash);
  }
  EXPECT_EQ(HashText(0x1d85), "0000000000001d85");
  for (const std::string text :
       {"", "1d85", "0x00000000001d85", "000000000000001d85", "000000000000 1d8", "00000000000000-1"}) {
    EXPECT_EQ(ParseHash(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace quartet

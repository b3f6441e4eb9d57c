#include "core/base/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace quartet {
namespace {

TEST(Hash, DiffersWithEveryBitLengthAndSeed) {
  std::set<uint64_t> hashes;
  const std::string text(33, 'a');
  int distinct = 0;
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string changed = text;
    changed[bit / 8] ^= 1 << (bit % 8);
    hashes.insert(HashBytes(changed));
    ++distinct;
  }
  for (size_t length = 0; length <= 64; ++length) {
    hashes.insert(HashBytes(std::string(length, '\0')));
    hashes.insert(HashBytes(std::string(length, '\0'), 7));
    distinct += 2;
  }
  EXPECT_EQ(hashes.size(), distinct);
}

// Files of earlier releases have such hashes. Expected: core/base/splitmix64.h's functions in Python's whole numbers.
TEST(Hash, IsTheSameInEveryRelease) {
  EXPECT_EQ(HashBytes(""), 0xe220a8397b1dcdafu);
  EXPECT_EQ(HashBytes("abc"), 0x4b0c54184ef00d85u);
  EXPECT_EQ(HashBytes("abcdefgh"), 0x0110cdc1092858a9u);
  EXPECT_EQ(HashBytes("\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff\x01\x02\x03", 7),
            0xec2c6f95cc96bf47u);
}

TEST(Hash, ChainsPartsByTheirBoundaries) {
  EXPECT_NE(HashBytes("b", HashBytes("a")), HashBytes("ab"));
  EXPECT_NE(HashBytes("bc", HashBytes("a")), HashBytes("c", HashBytes("ab")));
}

}  // namespace
}  // namespace quartet

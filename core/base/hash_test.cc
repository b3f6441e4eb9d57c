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

TEST(Hash, ChainsPartsByTheirBoundaries) {
  EXPECT_NE(HashBytes("b", HashBytes("a")), HashBytes("ab"));
  EXPECT_NE(HashBytes("bc", HashBytes("a")), HashBytes("c", HashBytes("ab")));
}

}  // namespace
}  // namespace quartet

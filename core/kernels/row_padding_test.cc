#include "core/kernels/row_padding.h"

#include <gtest/gtest.h>

#include <set>

namespace quartet {
namespace {

TEST(RowPaddingTest, GivesAtLeastTheRowsAndAtMostAnEighthMore) {
  for (int64_t rows = 0; rows <= 5000; ++rows) {
    EXPECT_GE(PaddedRows(rows), rows);
    EXPECT_LE(PaddedRows(rows), rows + rows / 8) << rows;
  }
}

TEST(RowPaddingTest, GivesEightSizesInEachPowerOfTwo) {
  for (int64_t power = 8; power <= 4096; power *= 2) {
    std::set<int64_t> sizes;
    for (int64_t rows = power + 1; rows <= 2 * power; ++rows) sizes.insert(PaddedRows(rows));
    EXPECT_EQ(sizes.size(), 8) << power;
    EXPECT_EQ(*sizes.rbegin(), 2 * power);
  }
}

TEST(RowPaddingTest, LeavesItsOwnSizesAsTheyAre) {
  for (int64_t rows = 0; rows <= 5000; ++rows) EXPECT_EQ(PaddedRows(PaddedRows(rows)), PaddedRows(rows));
}

}  // namespace
}  // namespace quartet

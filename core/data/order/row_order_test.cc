#include "core/data/order/row_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/data/order/permutation.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;

TEST(Permutation, HasEachPlaceOnce) {
  for (const int64_t n : {1, 2, 3, 4, 5, 15, 16, 17, 64, 1000, 65537}) {
    for (const uint64_t seed : {0, 1, 42}) {
      const Permutation permutation(seed, n);
      std::vector<bool> seen(n);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t place = permutation(i);
        ASSERT_TRUE(place >= 0 && place < n && !seen[place]) << n << " " << seed << " " << i;
        seen[place] = true;
      }
    }
  }
}

TEST(Permutation, OrdersThreeInAllSixWaysEquallyOften) {
  std::map<std::vector<int64_t>, int> counts;
  constexpr int kSeeds = 60'000;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Permutation permutation(seed, 3);
    ++counts[{permutation(0), permutation(1), permutation(2)}];
  }
  ASSERT_EQ(counts.size(), 6);
  // Expected 10,000 each, with a standard deviation of 91.
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 10'000, 500);
}

TEST(Permutation, KeepsNoNeighbours) {
  constexpr int64_t kRows = 100'000;
  const Permutation permutation(7, kRows);
  int64_t neighbours = 0, same = 0;
  for (int64_t i = 0; i + 1 < kRows; ++i) {
    neighbours += permutation(i + 1) == permutation(i) + 1;
    same += permutation(i) == i;
  }
  // Each is 1 on average, in a random order.
  EXPECT_LT(neighbours, 10);
  EXPECT_LT(same, 10);
}

std::vector<RowPlace> Take(RowOrder order, int64_t begin, int64_t count) {
  std::vector<RowPlace> places;
  for (int64_t i = begin; i < begin + count; ++i) places.push_back(order.At(i));
  return places;
}

TEST(RowOrder, GoesThroughAllRowsOfAllFilesOnceAnEpoch) {
  const std::vector<int64_t> rows = {5, 1, 7};
  std::vector<std::vector<RowPlace>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    epochs.push_back(Take(RowOrder(42, true, rows, {}), epoch * 13, 13));
    std::map<int64_t, std::set<int64_t>> seen;
    for (const RowPlace& place : epochs.back()) seen[place.file].insert(place.row);
    for (int64_t file = 0; file < 3; ++file) {
      EXPECT_EQ(seen[file].size(), rows[file]);
      EXPECT_LT(*seen[file].rbegin(), rows[file]);
    }
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_EQ(epochs[0], Take(RowOrder(42, true, rows, {}), 0, 13));
  EXPECT_NE(epochs[0], Take(RowOrder(43, true, rows, {}), 0, 13));
}

TEST(RowOrder, KeepsTheOrderOfTheFilesWhereNothingIsShuffled) {
  EXPECT_THAT(Take(RowOrder(42, false, {2, 1}, {}), 1, 4),
              ElementsAre(RowPlace{0, 1}, RowPlace{1, 0}, RowPlace{0, 0}, RowPlace{0, 1}));
}

TEST(RowOrder, DrawsFilesByTheirWeights) {
  std::vector<int64_t> counts(3);
  for (const RowPlace& place : Take(RowOrder(42, true, {10, 1000, 3}, {1, 2, 7}), 0, 100'000)) ++counts[place.file];
  // Standard deviations of 95, 126 and 145.
  EXPECT_NEAR(counts[0], 10'000, 500);
  EXPECT_NEAR(counts[1], 20'000, 630);
  EXPECT_NEAR(counts[2], 70'000, 730);
}

TEST(RowOrder, GoesThroughEachFileOfAMixtureInEpochsOfItsOwn) {
  RowOrder order(42, true, {4, 100}, {0.5, 0.5});
  std::vector<int64_t> first;
  for (int64_t i = 0; first.size() < 12; ++i) {
    if (const RowPlace place = order.At(i); place.file == 0) first.push_back(place.row);
  }
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::set<int64_t> rows(first.begin() + epoch * 4, first.begin() + (epoch + 1) * 4);
    EXPECT_THAT(rows, ElementsAre(0, 1, 2, 3));
  }
}

TEST(RowOrder, IsTheSameFromWhereverItIsTakenUp) {
  for (const std::vector<double>& weights : {std::vector<double>{}, {0.9, 0.1}}) {
    const std::vector<RowPlace> whole = Take(RowOrder(1, true, {50, 20}, weights), 0, 300);
    RowOrder order(1, true, {50, 20}, weights);
    for (const int64_t begin : {200, 7, 299, 0}) {
      EXPECT_EQ(order.At(begin), whole[begin]);
      EXPECT_EQ(RowOrder(1, true, {50, 20}, weights).At(begin), whole[begin]);
    }
  }
}

TEST(RowOrder, ReplacesARowByOthersOfItsFile) {
  for (const std::vector<double>& weights : {std::vector<double>{}, {0.5, 0.5}}) {
    RowOrder order(1, true, {3, 20}, weights);
    for (int64_t position = 0; position < 50; ++position) {
      const RowPlace place = order.At(position);
      std::set<int64_t> rows;
      for (int64_t attempt = 1; attempt < 200; ++attempt) {
        const RowPlace other = order.InPlaceOf(position, attempt);
        ASSERT_EQ(other.file, place.file);
        ASSERT_EQ(other, order.InPlaceOf(position, attempt));
        rows.insert(other.row);
      }
      EXPECT_EQ(rows.size(), place.file == 0 ? 3 : 20);
      EXPECT_LT(*rows.rbegin(), place.file == 0 ? 3 : 20);
    }
  }
}

}  // namespace
}  // namespace quartet

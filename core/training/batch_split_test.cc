#include "core/training/batch_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace quartet {
namespace {

std::vector<int64_t> TokensByRank(const BatchSplit& split, const std::vector<int64_t>& tokens) {
  std::vector<int64_t> sums;
  for (const auto& items : split.items) {
    int64_t sum = 0;
    for (size_t item : items) sum += tokens[item];
    sums.push_back(sum);
  }
  return sums;
}

TEST(BatchSplit, GivesEachSequenceToExactlyOneRank) {
  std::mt19937 random(1);
  for (int ranks : {1, 2, 3, 7}) {
    for (int n : {0, 1, 5, 64}) {
      std::vector<int64_t> tokens(n);
      for (int64_t& t : tokens) t = 1 + random() % 500;
      const BatchSplit split = SplitBatch(tokens, ranks, 4);
      ASSERT_EQ(split.items.size(), ranks);
      std::multiset<size_t> seen;
      for (const auto& items : split.items) seen.insert(items.begin(), items.end());
      ASSERT_EQ(seen.size(), n);
      size_t expected = 0;
      for (size_t item : seen) EXPECT_EQ(item, expected++);
    }
  }
}

TEST(BatchSplit, BalancesTokensRatherThanSequences) {
  // In the given order the first rank would get 1000 + 900 tokens, the second 10 + 20.
  const std::vector<int64_t> tokens = {1000, 900, 10, 20};
  std::vector<int64_t> sums = TokensByRank(SplitBatch(tokens, 2, 1), tokens);
  std::sort(sums.begin(), sums.end());
  EXPECT_EQ(sums, (std::vector<int64_t>{920, 1010}));
}

TEST(BatchSplit, KeepsTheNumberOfMicroBatchesAtItsLeastEvenWithOneVeryLongSequence) {
  // By tokens alone, rank 1 would take all seven short ones: four micro-batches of 2 instead of two.
  const BatchSplit split = SplitBatch({1000, 1, 1, 1, 1, 1, 1, 1}, 2, 2);
  EXPECT_EQ(split.micro_batches, 2);
  EXPECT_EQ(split.items[0].size(), 4);
  EXPECT_EQ(split.items[1].size(), 4);
}

TEST(BatchSplit, CountsMicroBatchesOfTheFullestRank) {
  EXPECT_EQ(SplitBatch({}, 2, 4).micro_batches, 0);
  EXPECT_EQ(SplitBatch({5}, 3, 4).micro_batches, 1);
  EXPECT_EQ(SplitBatch(std::vector<int64_t>(9, 1), 2, 2).micro_batches, 3);  // 5 and 4 sequences
}

TEST(BatchSplit, PutsTheLongestSequencesOfARankFirst) {
  const std::vector<int64_t> tokens = {3, 9, 1, 7, 5};
  for (const auto& items : SplitBatch(tokens, 2, 1).items) {
    EXPECT_TRUE(std::is_sorted(items.begin(), items.end(), [&](size_t a, size_t b) { return tokens[a] > tokens[b]; }));
  }
}

}  // namespace
}  // namespace quartet

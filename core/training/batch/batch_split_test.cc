#include "core/training/batch/batch_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

namespace quartet {
namespace {

// Cost is quadratic in part, as attention's is: 4,096 tokens cost half as much again for attention alone.
BatchItem Sequence(int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  return {.tokens = tokens, .cost = n + n * n / 8192};
}

std::vector<BatchItem> Sequences(const std::vector<int64_t>& lengths) {
  std::vector<BatchItem> batch;
  for (int64_t length : lengths) batch.push_back(Sequence(length));
  return batch;
}

// Prompt and answer as long as GSM8K's come out with a small instruct model: log-normal, 100 and 150 tokens in the
// middle, now and then an answer that goes on to the limit.
std::vector<BatchItem> LikeGsm8k(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> prompt(std::log(100), 0.35), answer(std::log(150), 0.45);
  std::vector<int64_t> lengths(count);
  for (int64_t& length : lengths) {
    length =
        std::lround(std::min(prompt(random), 384.0) + (random() % 50 == 0 ? 1024 : std::min(answer(random), 1024.0)));
  }
  return Sequences(lengths);
}

int64_t Tokens(const std::vector<BatchItem>& batch) {
  return std::accumulate(batch.begin(), batch.end(), int64_t{0},
                         [](int64_t sum, const BatchItem& item) { return sum + item.tokens; });
}

// By rank and micro-batch: indices into the batch.
std::vector<std::vector<std::vector<size_t>>> MicroBatches(const BatchSplit& split) {
  std::vector<std::vector<std::vector<size_t>>> result(split.items.size());
  for (size_t rank = 0; rank < split.items.size(); ++rank) {
    auto next = split.items[rank].begin();
    for (uint32_t size : split.micro_batch_sizes[rank]) {
      result[rank].emplace_back(next, next + size);
      next += size;
    }
    EXPECT_EQ(next, split.items[rank].end());
  }
  return result;
}

double Cost(const std::vector<BatchItem>& batch, const std::vector<size_t>& items) {
  double sum = 0;
  for (size_t item : items) sum += batch[item].cost;
  return sum;
}

// What holds of every split.
void ExpectSound(const std::vector<BatchItem>& batch, int ranks, const MicroBatchLimit& limit,
                 const BatchSplit& split) {
  ASSERT_EQ(split.items.size(), ranks);
  ASSERT_EQ(split.micro_batch_sizes.size(), ranks);
  std::vector<size_t> seen;
  size_t empty = 0;
  for (const auto& rank : MicroBatches(split)) {
    ASSERT_EQ(rank.size(), split.micro_batches()) << "all ranks run equally many";
    for (const std::vector<size_t>& items : rank) {
      int64_t tokens = 0;
      for (size_t item : items) tokens += batch[item].tokens;
      if (limit.tokens > 0) {
        EXPECT_LE(tokens, limit.tokens);
      }
      if (limit.sequences > 0) {
        EXPECT_LE(items.size(), limit.sequences);
      }
      empty += items.empty();
      seen.insert(seen.end(), items.begin(), items.end());
    }
  }
  EXPECT_LT(empty, ranks);
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen.size(), batch.size());
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i);
  EXPECT_GT(split.balance, 0);
  EXPECT_LE(split.balance, 1 + 1e-12);
}

// The fewest micro-batches that hold the lengths, by trying everything.
size_t FewestByTrying(std::vector<int64_t> lengths, int64_t most_tokens) {
  std::sort(lengths.rbegin(), lengths.rend());
  size_t best = lengths.size();
  std::vector<int64_t> bins;
  const std::function<void(size_t)> place = [&](size_t i) {
    if (bins.size() >= best) return;
    if (i == lengths.size()) {
      best = bins.size();
      return;
    }
    for (size_t bin = 0; bin < bins.size(); ++bin) {
      if (bins[bin] + lengths[i] > most_tokens) continue;
      bins[bin] += lengths[i];
      place(i + 1);
      bins[bin] -= lengths[i];
    }
    bins.push_back(lengths[i]);
    place(i + 1);
    bins.pop_back();
  };
  place(0);
  return best;
}

TEST(BatchSplit, GivesEachSequenceToOneMicroBatchAndKeepsToTheLimit) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 9);
    const int64_t longest = 1 + random() % 1000;
    std::vector<int64_t> lengths(random() % 80);
    for (int64_t& length : lengths) length = 1 + random() % longest;
    const std::vector<BatchItem> batch = Sequences(lengths);
    for (const MicroBatchLimit& limit : {MicroBatchLimit{.tokens = longest + static_cast<int64_t>(random() % 2000)},
                                         MicroBatchLimit{.sequences = 1 + static_cast<int64_t>(random() % 9)},
                                         MicroBatchLimit{.sequences = 3, .tokens = longest}}) {
      const BatchSplit split = SplitBatch(batch, ranks, limit);
      ExpectSound(batch, ranks, limit, split);
      EXPECT_EQ(SplitBatch(batch, ranks, limit).items, split.items) << "a function of its arguments alone";
    }
  }
}

// The sum of the lengths over the budget says three micro-batches, but no two of these go together.
TEST(BatchSplit, DoesNotTakeTheSumOfTokensForAPacking) {
  const std::vector<BatchItem> batch = Sequences({7, 7, 7, 7, 7});
  const BatchSplit split = SplitBatch(batch, 2, {.tokens = 12});
  EXPECT_EQ(split.micro_batches(), 3);
  ExpectSound(batch, 2, {.tokens = 12}, split);
}

TEST(BatchSplit, MakesAsManyMicroBatchesAsSequencesDemandWhereTheyAreCounted) {
  EXPECT_EQ(SplitBatch({}, 2, {.sequences = 4}).micro_batches(), 0);
  EXPECT_EQ(SplitBatch(Sequences({5}), 3, {.sequences = 4}).micro_batches(), 1);
  for (int64_t n = 1; n < 40; ++n) {
    for (int ranks : {1, 2, 3, 5}) {
      for (int64_t size : {1, 2, 7}) {
        const BatchSplit split = SplitBatch(Sequences(std::vector<int64_t>(n, 3)), ranks, {.sequences = size});
        const int64_t on_one_rank = (n + ranks - 1) / ranks;
        EXPECT_EQ(split.micro_batches(), (on_one_rank + size - 1) / size) << n << " " << ranks << " " << size;
      }
    }
  }
}

TEST(BatchSplit, NeedsAtMostHalfAsManyAgainAsTheFewestMicroBatches) {  // Simchi-Levi 1994, for few sequences
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> lengths(1 + random() % 9);
    for (int64_t& length : lengths) length = 1 + random() % 100;
    const size_t fewest = FewestByTrying(lengths, 100);
    EXPECT_LE(2 * SplitBatch(Sequences(lengths), 1, {.tokens = 100}).micro_batches(), 3 * fewest);
  }
}

TEST(BatchSplit, FillsMicroBatchesOfGsm8ksLengths) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<BatchItem> batch = LikeGsm8k(512, seed);
    for (int ranks : {1, 2, 3, 8}) {
      for (int64_t budget : {2048, 4096, 16384}) {
        const BatchSplit split = SplitBatch(batch, ranks, {.tokens = budget});
        ExpectSound(batch, ranks, {.tokens = budget}, split);
        const int64_t fewest = (Tokens(batch) + budget * ranks - 1) / (budget * ranks);
        EXPECT_LE(split.micro_batches(), fewest + 1) << budget << " tokens on " << ranks << " ranks";
      }
    }
  }
}

TEST(BatchSplit, LeavesRanksWaitingForLessThanAThirtiethOfTheTimeAtGsm8ksLengths) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<BatchItem> batch = LikeGsm8k(512, seed);
    for (int ranks : {2, 3, 8}) {
      for (const MicroBatchLimit& limit : {MicroBatchLimit{.tokens = 2048}, MicroBatchLimit{.tokens = 4096},
                                           MicroBatchLimit{.sequences = 4}, MicroBatchLimit{.sequences = 16}}) {
        const BatchSplit split = SplitBatch(batch, ranks, limit);
        EXPECT_GE(split.balance, 0.97) << ranks << " ranks, " << limit.sequences << " sequences, " << limit.tokens
                                       << " tokens, seed " << seed;
        std::vector<double> costs;
        for (const auto& items : split.items) costs.push_back(Cost(batch, items));
        EXPECT_GE(*std::min_element(costs.begin(), costs.end()), 0.97 * *std::max_element(costs.begin(), costs.end()));
      }
    }
  }
}

TEST(BatchSplit, BalancesCostRatherThanTokens) {
  // By tokens, three of the short ones would go with the long one.
  std::vector<int64_t> lengths(14, 1000);
  lengths.push_back(8000);
  const std::vector<BatchItem> batch = Sequences(lengths);
  const BatchSplit split = SplitBatch(batch, 2, {.tokens = 16000});
  ASSERT_EQ(split.micro_batches(), 1);
  EXPECT_EQ(split.items[0], (std::vector<size_t>{14}));
  EXPECT_GE(split.balance, 0.99);
}

TEST(BatchSplit, DealsNeighboursInWeightToTheRanksTheHeaviestFirst) {
  // No two fit together, so that micro-batches are of very different weight.
  const std::vector<BatchItem> batch = Sequences({60, 100, 90, 70, 80, 55});
  const auto micro_batches = MicroBatches(SplitBatch(batch, 2, {.tokens = 100}));
  const std::vector<std::vector<size_t>> expected = {{1, 2}, {3, 4}, {0, 5}};
  for (size_t m = 0; m < 3; ++m) {
    std::vector<size_t> both = {micro_batches[0][m].at(0), micro_batches[1][m].at(0)};
    std::sort(both.begin(), both.end());
    EXPECT_EQ(both, expected[m]);
  }
}

TEST(BatchSplit, SaysWhatShareOfTheRanksTimeIsWork) {
  const std::vector<BatchItem> batch = {
      {.tokens = 10, .cost = 4}, {.tokens = 10, .cost = 2}, {.tokens = 10, .cost = 1}};
  // Two steps: 4 beside 2, then 1 beside nothing.
  EXPECT_DOUBLE_EQ(SplitBatch(batch, 2, {.sequences = 1}).balance, 7.0 / (2 * (4 + 1)));
  EXPECT_EQ(SplitBatch(batch, 1, {.sequences = 1}).balance, 1);
  EXPECT_EQ(SplitBatch({}, 2, {.sequences = 1}).balance, 1);
}

}  // namespace
}  // namespace quartet

#include "core/training/batch/sequence_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace quartet {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr SequenceCost kByToken = {.per_token = 1, .sharing = Sharing::kBlocks};

// Of `prompt` and then `answer`, tokens that no other sequence has.
struct Batch {
  std::vector<TokenSequence> sequences;

  void Add(int prompt_id, int prompt, int answer) {
    TokenSequence& sequence = sequences.emplace_back();
    sequence.set_index(sequences.size() - 1);
    for (int t = 0; t < prompt + answer; ++t) {
      sequence.add_ids(t < prompt ? 1'000'000 * (prompt_id + 1) + t : static_cast<int>(1000 * sequences.size()) + t);
      sequence.add_action_mask(t >= prompt);
    }
  }
  std::vector<const TokenSequence*> pointers() const {
    std::vector<const TokenSequence*> all;
    for (const TokenSequence& sequence : sequences) all.push_back(&sequence);
    return all;
  }
};

// What each rank computes: tokens of its micro-batches, shared ones once in each.
std::vector<int64_t> TokensByRank(const Batch& batch, const BatchSplit& split, const MicroBatchLimit& limit) {
  std::vector<int64_t> by_rank;
  std::set<size_t> seen;
  for (size_t rank = 0; rank < split.items.size(); ++rank) {
    int64_t& tokens = by_rank.emplace_back(0);
    const size_t* next = split.items[rank].data();
    for (const uint32_t size : split.micro_batch_sizes[rank]) {
      std::vector<const TokenSequence*> part;
      for (uint32_t i = 0; i < size; ++i, ++next) {
        part.push_back(&batch.sequences[*next]);
        EXPECT_TRUE(seen.insert(*next).second) << "sequence " << *next << " twice";
      }
      const BatchItem item = TogetherOf(part, kByToken);
      tokens += static_cast<int64_t>(item.cost);
      EXPECT_TRUE(limit.tokens == 0 || item.tokens <= limit.tokens) << item.tokens;
      EXPECT_TRUE(limit.sequences == 0 || item.sequences <= limit.sequences) << item.sequences;
    }
  }
  EXPECT_EQ(seen.size(), batch.sequences.size());
  return by_rank;
}

TEST(PlacesInTree, PutSequencesThatBeginAlikeBesideEachOther) {
  Batch batch;
  batch.Add(0, 3, 2);
  batch.Add(1, 2, 1);
  batch.Add(0, 3, 1);
  batch.sequences.push_back(batch.sequences[1]);
  const std::vector<PlaceInTree> places = PlacesInTree(batch.pointers(), true);
  std::vector<std::pair<size_t, int64_t>> found;
  for (const PlaceInTree& place : places) found.emplace_back(place.index, place.shared);
  EXPECT_THAT(found, ElementsAre(std::pair(0, 0), std::pair(2, 3), std::pair(1, 0), std::pair(3, 3)));
}

TEST(SplitTree, ComputesEachPromptOnceWhereItCan) {
  Batch batch;
  for (int sample = 0; sample < 8; ++sample) {
    for (int prompt = 0; prompt < 16; ++prompt) batch.Add(prompt, 100, 20);
  }
  const MicroBatchLimit limit = {.tokens = 600};
  for (const int ranks : {1, 2, 4}) {
    const BatchSplit split = SplitTree(batch.pointers(), ranks, limit, kByToken);
    EXPECT_THAT(TokensByRank(batch, split, limit), Each(16 * (100 + 8 * 20) / ranks));
    EXPECT_EQ(split.micro_batches(), 8 / ranks) << "two prompts each";
  }
}

TEST(SplitTree, SplitsAPromptsAnswersWhereRanksWouldWaitElse) {
  Batch batch;
  for (int sample = 0; sample < 8; ++sample) batch.Add(0, 100, 50);
  const MicroBatchLimit limit = {.tokens = 2000};
  EXPECT_THAT(TokensByRank(batch, SplitTree(batch.pointers(), 2, limit, kByToken), limit), Each(100 + 4 * 50));
  for (int sample = 0; sample < 16; ++sample) batch.Add(sample < 8 ? 1 : 2, 100, 50);
  const std::vector<int64_t> tokens = TokensByRank(batch, SplitTree(batch.pointers(), 2, limit, kByToken), limit);
  EXPECT_LE(*std::max_element(tokens.begin(), tokens.end()), 900) << "of 1500, and one prompt or two more";
}

TEST(SplitTree, CutsATreeThatAllSequencesBelongToIntoEvenPieces) {
  Batch batch;  // as few-shot examples are the beginning of every prompt
  for (int i = 0; i < 100; ++i) {
    batch.Add(0, 20, 1 + i % 7);
    if (i % 2 == 0) batch.sequences.push_back(batch.sequences.back());
  }
  const MicroBatchLimit limit = {.tokens = 2000};
  for (const int ranks : {2, 3, 4}) {
    const std::vector<int64_t> tokens = TokensByRank(batch, SplitTree(batch.pointers(), ranks, limit, kByToken), limit);
    const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
    EXPECT_LE(*most - *least, 10) << ranks;
    EXPECT_LE(*most, 20 + 397 / ranks + 7) << ranks;
  }
}

TEST(SplitTree, KeepsToTheLimitsWhateverIsShared) {
  Batch batch;
  for (int sample = 0; sample < 40; ++sample) batch.Add(sample % 3, 30, 1 + sample);
  for (const MicroBatchLimit& limit : {MicroBatchLimit{.sequences = 1}, MicroBatchLimit{.sequences = 3},
                                       MicroBatchLimit{.tokens = 71}, MicroBatchLimit{.sequences = 5, .tokens = 120}}) {
    for (const int ranks : {1, 2, 3}) TokensByRank(batch, SplitTree(batch.pointers(), ranks, limit, kByToken), limit);
  }
}

TEST(SplitTree, CountsEqualAnswersOnce) {
  Batch batch;
  batch.Add(0, 10, 90);
  for (int sample = 0; sample < 7; ++sample) batch.sequences.push_back(batch.sequences[0]);
  const BatchItem item = TogetherOf(batch.pointers(), kByToken);
  EXPECT_EQ(item.cost, 100);
  EXPECT_EQ(item.tokens, 100);
  constexpr SequenceCost kByAction = {.per_token = 0, .per_action = 1, .sharing = Sharing::kBlocks};
  EXPECT_EQ(TogetherOf(batch.pointers(), kByAction).cost, 90);
  EXPECT_EQ(TogetherOf(batch.pointers(), {.per_token = 0, .per_action = 1}).cost, 8 * 90);
  for (int sample = 0; sample < 24; ++sample) batch.sequences.push_back(batch.sequences[0]);
  EXPECT_EQ(TogetherOf(batch.pointers(), kByToken).tokens, 32 * 90 / 16) << "what is kept of each action";
  EXPECT_EQ(TogetherOf(batch.pointers(), {.per_token = 1}).cost, 3200);
}

TEST(SplitTree, CountsHalfTheKeysThatSequencesHaveCopiesOf) {
  constexpr SequenceCost kByCopies = {.per_token = 1, .sharing = Sharing::kKeyCopies};
  Batch batch;
  for (int sample = 0; sample < 5; ++sample) {
    batch.Add(0, 100, 10);
    const BatchItem item = TogetherOf(batch.pointers(), kByCopies);
    const int64_t rows = 100 + 10 * (sample + 1), keys = 110 * (sample + 1);
    EXPECT_EQ(item.tokens, std::max(rows, keys / 2)) << sample + 1 << " answers";
    EXPECT_EQ(item.cost, rows);
  }
  batch.sequences.push_back(batch.sequences.back());
  EXPECT_EQ(TogetherOf(batch.pointers(), kByCopies).tokens, 275) << "one that is all shared attends to nothing";
}

}  // namespace
}  // namespace quartet

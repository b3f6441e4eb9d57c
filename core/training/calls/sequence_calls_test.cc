#include "core/training/calls/sequence_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TokenSequence Sequence(uint64_t index, int prompt, int answer) {
  TokenSequence sequence;
  sequence.set_index(index);
  for (int t = 0; t < prompt + answer; ++t) {
    sequence.add_ids(static_cast<int32_t>(100 * index + t));  // no two begin alike
    sequence.add_action_mask(t >= prompt);
  }
  return sequence;
}

TEST(SplitSequences, NamesASequenceThatFitsInNoMicroBatch) {
  TrainerConfig config;
  config.set_max_tokens_per_micro_batch(8);
  const MicroBatching batching = UpdateBatching("critic", config, SequenceCost{.sharing = Sharing::kBlocks});
  const TokenSequence fits = Sequence(1, 4, 4), too_long = Sequence(7, 5, 4);
  EXPECT_TRUE(SplitSequences({&fits}, 2, batching).ok());
  const absl::Status status = SplitSequences({&fits, &too_long}, 2, batching).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("sequence 7"), HasSubstr("9 tokens"),
                                                   HasSubstr("critic.max_tokens_per_micro_batch is 8")));
}

TEST(SplitSequences, TakesTheSizesThatTheConfigurationGivesToForwardsAndUpdates) {
  TrainerConfig config;
  config.set_micro_train_batch_size(1);
  config.set_micro_rollout_batch_size(3);
  const TokenSequence sequence = Sequence(0, 2, 2);
  const std::vector<const TokenSequence*> sequences(6, &sequence);
  EXPECT_EQ(SplitSequences(sequences, 1, UpdateBatching("actor", config, SequenceCost{.sharing = Sharing::kBlocks}))
                ->micro_batches(),
            6);
  EXPECT_EQ(SplitSequences(sequences, 1, ForwardBatching("actor", config, SequenceCost{.sharing = Sharing::kBlocks}))
                ->micro_batches(),
            2);
}

TEST(MakeInputs, SerialisesWhatOtherRanksAreGivenAlone) {
  const std::vector<TokenSequence> sequences = {Sequence(0, 1, 1), Sequence(1, 1, 2), Sequence(2, 1, 3)};
  BatchSplit split;
  split.items = {{2, 0}, {1}};
  split.micro_batch_sizes = {{2}, {1}};
  const auto item = [&](size_t i) -> const TokenSequence& { return sequences[i]; };
  const std::vector<RankInput> inputs = MakeInputs(ForwardCall(), item, split);
  EXPECT_THAT(inputs[0].items, IsEmpty());
  const auto* own = std::any_cast<std::vector<TokenSequence>>(&inputs[0].own_items);
  ASSERT_NE(own, nullptr);
  ASSERT_EQ(own->size(), 2);
  EXPECT_EQ((*own)[0].SerializeAsString(), sequences[2].SerializeAsString());
  EXPECT_EQ((*own)[1].SerializeAsString(), sequences[0].SerializeAsString());
  EXPECT_THAT(inputs[1].items, ElementsAre(sequences[1].SerializeAsString()));
  EXPECT_FALSE(inputs[1].own_items.has_value());
}

TEST(SplitPairs, KeepsAPairInOneMicroBatchOfOneRank) {
  std::vector<TokenSequence> members;
  for (int i = 0; i < 14; ++i) members.push_back(Sequence(i, 1 + i % 3, 1 + (7 * i) % 11));
  std::vector<const TokenSequence*> sequences;
  for (const TokenSequence& member : members) sequences.push_back(&member);
  for (const MicroBatchLimit& limit : {MicroBatchLimit{.tokens = 40}, {.sequences = 1}, {.sequences = 5}}) {
    for (int ranks = 1; ranks <= 3; ++ranks) {
      MicroBatching batching;
      batching.limit = limit;
      const auto split = SplitPairs(sequences, ranks, batching);
      ASSERT_TRUE(split.ok()) << split.status();
      std::vector<size_t> all;
      for (int rank = 0; rank < ranks; ++rank) {
        size_t next = 0;
        for (uint32_t size : split->micro_batch_sizes[rank]) {
          EXPECT_EQ(size % 2, 0);
          if (limit.sequences > 0) {
            EXPECT_LE(size, limit.sequences == 5 ? 4 : 2);
          }
          int64_t tokens = 0;
          for (uint32_t i = 0; i < size; i += 2, next += 2) {
            const size_t chosen = split->items[rank][next];
            EXPECT_EQ(chosen % 2, 0);
            EXPECT_EQ(split->items[rank][next + 1], chosen + 1);
            all.push_back(chosen);
            tokens += members[chosen].ids_size() + members[chosen + 1].ids_size();
          }
          if (limit.tokens > 0) {
            EXPECT_LE(tokens, limit.tokens);
          }
        }
        EXPECT_EQ(next, split->items[rank].size());
      }
      EXPECT_THAT(all, ::testing::UnorderedElementsAre(0, 2, 4, 6, 8, 10, 12));
    }
  }
}

TEST(SplitPairs, NamesAPairThatFitsInNoMicroBatch) {
  TrainerConfig config;
  config.set_max_tokens_per_micro_batch(8);
  const TokenSequence chosen = Sequence(4, 2, 3), rejected = Sequence(5, 2, 2);
  const absl::Status status =
      SplitPairs({&chosen, &rejected}, 1, UpdateBatching("actor", config, SequenceCost{.sharing = Sharing::kBlocks}))
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("sequences 4 and 5, a pair, together have 9 tokens"),
                                                   HasSubstr("actor.max_tokens_per_micro_batch is 8")));
}

TEST(SplitPairs, CountsAPromptOnce) {
  MicroBatching batching;
  batching.cost.sharing = Sharing::kBlocks;
  batching.limit.tokens = 100;
  const TokenSequence chosen = Sequence(4, 60, 20);
  TokenSequence rejected = chosen;
  for (int t = 60; t < 80; ++t) rejected.set_ids(t, 9000 + t);
  EXPECT_TRUE(SplitPairs({&chosen, &rejected}, 1, batching).ok());
  batching.limit.tokens = 99;
  EXPECT_THAT(std::string(SplitPairs({&chosen, &rejected}, 1, batching).status().message()), HasSubstr("100 tokens"));
}

// The head works on actions alone: a prompt is cheaper than an answer of the same length.
TEST(SplitSequences, BalancesWhatSequencesCost) {
  MicroBatching batching;
  batching.limit.tokens = 100;
  batching.cost = {.per_token = 1, .per_action = 1};
  const TokenSequence answer = Sequence(0, 1, 20), prompt = Sequence(1, 20, 1), another = Sequence(2, 20, 1);
  const auto split = SplitSequences({&answer, &prompt, &another}, 2, batching);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_DOUBLE_EQ(split->balance, (41.0 + 22 + 22) / (2 * 44));
}

}  // namespace
}  // namespace quartet

#include "core/training/calls/leader_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TokenSequence Sequence(uint64_t index, int prompt, int answer) {
  TokenSequence sequence;
  sequence.set_index(index);
  for (int t = 0; t < prompt + answer; ++t) {
    sequence.add_ids(t);
    sequence.add_action_mask(t >= prompt);
  }
  return sequence;
}

TEST(SplitSequences, NamesASequenceThatFitsInNoMicroBatch) {
  TrainerConfig config;
  config.set_max_tokens_per_micro_batch(8);
  const MicroBatching batching = UpdateBatching("critic", config, SequenceCost());
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
  EXPECT_EQ(SplitSequences(sequences, 1, UpdateBatching("actor", config, SequenceCost()))->micro_batches(), 6);
  EXPECT_EQ(SplitSequences(sequences, 1, ForwardBatching("actor", config, SequenceCost()))->micro_batches(), 2);
}

// The head works on actions alone: a prompt is cheaper than an answer of the same length.
TEST(SplitSequences, BalancesWhatSequencesCost) {
  MicroBatching batching;
  batching.limit.tokens = 100;
  batching.cost = {.per_token = 1, .per_action = 1};
  const TokenSequence answer = Sequence(0, 1, 20), prompt = Sequence(1, 20, 1);
  const auto split = SplitSequences({&answer, &prompt, &prompt}, 2, batching);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_DOUBLE_EQ(split->balance, (41.0 + 22 + 22) / (2 * 44));
}

}  // namespace
}  // namespace quartet

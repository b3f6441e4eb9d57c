#include "core/training/batch/batch_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/rl/options/token_arrays.h"
#include "core/rl/testing/token_arrays.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr SequenceLimits kLimits = {.vocab_size = 10, .max_len = 4};

TokenSequence Sequence(uint64_t index, std::vector<int32_t> ids, std::vector<bool> mask) {
  TokenSequence sequence;
  sequence.set_index(index);
  sequence.mutable_ids()->Assign(ids.begin(), ids.end());
  for (bool action : mask) sequence.add_action_mask(action);
  return sequence;
}

std::string Refusal(const TokenSequence& sequence) {
  const absl::Status status = CheckSequences({&sequence}, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(BatchCheck, AcceptsWhatIsInOrder) {
  const TokenSequence a = Sequence(3, {0, 9, 5, 5}, {false, true, false, true});
  const TokenSequence b = Sequence(4, {1}, {false});
  EXPECT_TRUE(CheckSequences({&a, &b}, kLimits).ok());
  EXPECT_EQ(CountActions(a), 2);
}

TEST(BatchCheck, NamesSequenceFieldValueAndWhatIsAllowed) {
  EXPECT_THAT(Refusal(Sequence(7, {1, 10}, {false, true})),
              AllOf(HasSubstr("sequence 7"), HasSubstr("ids[1] is 10"), HasSubstr("0 to 9")));
  EXPECT_THAT(Refusal(Sequence(7, {-1, 1}, {false, true})), HasSubstr("ids[0] is -1"));
  EXPECT_THAT(Refusal(Sequence(7, {}, {})), HasSubstr("ids has 0 tokens; allowed are 1 to 4"));
  EXPECT_THAT(Refusal(Sequence(7, {1, 1, 1, 1, 1}, {false, true, true, true, true})), HasSubstr("ids has 5 tokens"));
  EXPECT_THAT(Refusal(Sequence(7, {1, 2}, {false})), HasSubstr("action_mask has 1 entries for 2 ids"));
  EXPECT_THAT(Refusal(Sequence(7, {1, 2}, {true, true})), HasSubstr("action_mask[0]"));
}

TEST(BatchCheck, RefusesTheSameIndexTwice) {
  const TokenSequence a = Sequence(3, {1, 2}, {false, true});
  EXPECT_THAT(std::string(CheckSequences({&a, &a}, kLimits).message()), HasSubstr("sequence 3: index is not unique"));
}

TEST(BatchCheck, WantsOneFiniteEntryPerActionTokenOfEachArrayThatTheLossNeeds) {
  TrainingSequence sequence;
  *sequence.mutable_tokens() = Sequence(5, {1, 2, 3}, {false, true, true});
  const std::vector<std::string_view> arrays = {kLossWeights};
  const auto refusal = [&] { return std::string(CheckTrainingSequences({sequence}, arrays, kLimits).message()); };

  EXPECT_THAT(refusal(), AllOf(HasSubstr("sequence 5"), HasSubstr("arrays has no \"loss_weights\"")));
  MutableArray(kLossWeights, &sequence).Add(0.5);
  MutableArray(kLossWeights, &sequence).Add(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(refusal(), HasSubstr("loss_weights[1] is nan"));
  MutableArray(kLossWeights, &sequence)[1] = 0.5;
  EXPECT_EQ(refusal(), "");
  MutableArray(kLossWeights, &sequence).Add(1);
  EXPECT_THAT(refusal(), HasSubstr("loss_weights has 3 entries for 2 action tokens"));
  MutableArray(kLossWeights, &sequence).RemoveLast();
  *sequence.add_arrays() = sequence.arrays(0);
  EXPECT_THAT(refusal(), HasSubstr("arrays has \"loss_weights\" twice"));
  sequence.mutable_arrays()->RemoveLast();
  MutableArray(kOldLogProbs, &sequence);
  EXPECT_THAT(refusal(),
              HasSubstr("arrays has \"old_log_probs\", which this loss does not read; it reads \"loss_weights\""));
}

TEST(BatchCheck, RefusesAnUpdateWithoutSequencesOrActions) {
  EXPECT_FALSE(CheckTrainingSequences({}, {}, kLimits).ok());
  TrainingSequence sequence;
  *sequence.mutable_tokens() = Sequence(5, {1, 2}, {false, false});
  EXPECT_THAT(std::string(CheckTrainingSequences({sequence}, {}, kLimits).message()), HasSubstr("no true entry"));
}

TEST(BatchCheck, WantsPairsOfWhichTheChosenSequenceHasAFiniteTerm) {
  std::vector<TrainingSequence> pair(2);
  *pair[0].mutable_tokens() = Sequence(4, {1, 2}, {false, true});
  *pair[1].mutable_tokens() = Sequence(5, {1, 3}, {false, true});
  bool has_margin = true;
  const auto refusal = [&] { return std::string(CheckPairs(pair, has_margin).message()); };
  EXPECT_THAT(refusal(), HasSubstr("sequence 4: pair is not set"));
  pair[0].mutable_pair()->set_weight(0.5);
  EXPECT_EQ(refusal(), "");
  pair[0].mutable_pair()->set_margin(1);
  EXPECT_EQ(refusal(), "");
  has_margin = false;
  EXPECT_THAT(refusal(), HasSubstr("sequence 4: pair.margin is 1; this loss has no margin"));
  has_margin = true;
  pair[0].mutable_pair()->set_margin(std::numeric_limits<float>::infinity());
  EXPECT_THAT(refusal(), HasSubstr("sequence 4: pair.margin is inf; it must be finite"));
  pair[0].mutable_pair()->set_margin(0);
  pair[0].mutable_pair()->set_weight(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(refusal(), HasSubstr("sequence 4: pair.weight is nan; it must be finite"));
  pair[0].mutable_pair()->set_weight(1);
  pair[1].mutable_pair()->set_weight(1);
  EXPECT_THAT(refusal(), HasSubstr("sequence 5: pair is set on the rejected sequence"));
  pair.pop_back();
  EXPECT_THAT(refusal(), HasSubstr("header.num_items is 1; a loss of pairs needs an even number"));
}

TEST(BatchCheck, RefusesTemperaturesAndLearningRatesThatMakeNoSense) {
  EXPECT_TRUE(CheckTemperature(0.5f).ok());
  EXPECT_FALSE(CheckTemperature(0).ok());
  EXPECT_FALSE(CheckTemperature(std::numeric_limits<float>::infinity()).ok());
  EXPECT_TRUE(CheckLearningRate(0).ok());
  EXPECT_FALSE(CheckLearningRate(-1e-9).ok());
  EXPECT_FALSE(CheckLearningRate(std::numeric_limits<double>::quiet_NaN()).ok());
}

}  // namespace
}  // namespace quartet

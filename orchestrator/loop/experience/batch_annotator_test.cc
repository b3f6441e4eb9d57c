#include "orchestrator/loop/experience/batch_annotator.h"

#include <gtest/gtest.h>

#include <iterator>
#include <vector>

#include "orchestrator/loop/testing/ppo_test_base.h"

namespace quartet {
namespace {

// Of that many tokens, of which trainer and rollout say the same.
Experience AnswerOf(size_t tokens) {
  Experience e;
  e.log_probs = e.rollout_log_probs = std::vector<float>(tokens, -1.0f);
  return e;
}

TEST(RecomputedLogProbs, AreAllOrOneInSixteenAndOthersInEachStep) {
  AlgorithmConfig algorithm;
  algorithm.set_old_log_prob_source("trainer");
  EXPECT_EQ(RecomputedAtFirst(algorithm, 5, 3), (std::vector<size_t>{0, 1, 2}));
  algorithm.set_old_log_prob_source("rollout");
  EXPECT_EQ(RecomputedAtFirst(algorithm, 0, 17), (std::vector<size_t>{0, 16}));
  algorithm.set_old_log_prob_source("auto");
  EXPECT_EQ(RecomputedAtFirst(algorithm, 0, 40), (std::vector<size_t>{0, 16, 32}));
  EXPECT_EQ(RecomputedAtFirst(algorithm, 17, 40), (std::vector<size_t>{1, 17, 33}));
  EXPECT_EQ(RecomputedAtFirst(algorithm, 3, 2), (std::vector<size_t>{1}));
  EXPECT_TRUE(RecomputedAtFirst(algorithm, 3, 0).empty());
}

TEST(LogProbDifference, OfNoTokensIsNoAgreement) {
  EXPECT_FALSE(AgreeClosely(CompareLogProbs({AnswerOf(0)}, {0})));
  EXPECT_TRUE(AgreeClosely(CompareLogProbs({AnswerOf(1)}, {0})));
}

TEST(LogProbDifference, IsTakenOverAllTokens) {
  std::vector<Experience> batch = {AnswerOf(150), AnswerOf(50)};
  // 200 tokens: 197 equal, one apart by 0.5, one by 1 and one by 3.
  batch[0].log_probs[3] += 0.5f;
  batch[0].log_probs[149] -= 1.0f;
  batch[1].log_probs[7] += 3.0f;
  const LogProbDifference difference = CompareLogProbs(batch, {0, 1});
  EXPECT_NEAR(difference.mean, 4.5 / 200, 1e-7);
  EXPECT_NEAR(difference.p99, 0.5, 1e-6) << "198 of 200 are at most 0.5";
  EXPECT_NEAR(difference.max, 3.0, 1e-6);
}

class BatchAnnotatorTest : public PpoTest {};

// An answer in two sequences of 1 and 2 actions, and one in one.
TEST_F(BatchAnnotatorTest, GivesEachActionOfAllSequencesWhatModelsSayOfIt) {
  // By the place of the sequence in its call, and of the action in its sequence.
  services_.spoil_values = [](TokenValues* values) {
    for (int i = 0; i < values->values_size(); ++i) {
      values->set_values(i, -static_cast<float>(values->index()) - static_cast<float>(i) / 8);
    }
  };
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_algorithm()->set_old_log_prob_source("trainer");
  config.mutable_train()->set_max_log_prob_diff_mean(100);
  absl::StatusOr<Services> clients = ConnectServices(config, &cancellation_);
  ASSERT_TRUE(clients.ok()) << clients.status();
  std::vector<Experience> batch = {AnswerOf(3), AnswerOf(2)};
  const auto sequence = [](std::vector<bool> actions) {
    TokenSequence tokens;
    tokens.mutable_ids()->Resize(static_cast<int>(actions.size()), 'a');
    tokens.mutable_action_mask()->Add(actions.begin(), actions.end());
    return tokens;
  };
  batch[0].sequences = {sequence({false, true}), sequence({false, false, true, false, true})};
  batch[1].sequences = {sequence({false, true, true})};
  TerminalView view(terminal_, false);
  MemoryTurns memory(config, *clients);
  BatchAnnotator annotator(config, *clients, memory, view);
  Metrics metrics;
  const absl::Status status = annotator.Annotate(0, &batch, &metrics);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(batch[0].log_probs, (std::vector<float>{0, -1, -1.125f}));
  EXPECT_EQ(batch[1].log_probs, (std::vector<float>{-2, -2.125f}));
  for (const Experience& e : batch) {
    EXPECT_EQ(std::ssize(e.reference_log_probs), e.action_tokens());
    EXPECT_EQ(std::ssize(e.values), e.action_tokens());
  }
}

}  // namespace
}  // namespace quartet

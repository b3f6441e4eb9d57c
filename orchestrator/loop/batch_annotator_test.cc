#include "orchestrator/loop/batch_annotator.h"

#include <gtest/gtest.h>

#include <vector>

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

}  // namespace
}  // namespace quartet

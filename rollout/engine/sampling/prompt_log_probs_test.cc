#include "rollout/engine/sampling/prompt_log_probs.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

SampledToken Token(float log_prob, std::vector<std::pair<int32_t, float>> alternatives = {}) {
  SampledToken token;
  token.log_prob = log_prob;
  token.alternatives = std::move(alternatives);
  return token;
}

TEST(PromptLogProbs, KeepsEachTokenOnceInOrder) {
  PromptLogProbs prompts;
  EXPECT_EQ(prompts.next(4), 1);
  EXPECT_TRUE(prompts.Take(4, 4, 1, 6, Token(-0.5f)).ok());
  EXPECT_TRUE(prompts.Take(4, 4, 1, 6, Token(-8)).ok()) << "of another sample";
  EXPECT_TRUE(prompts.Take(4, 4, 2, 6, Token(-1.5f)).ok());
  EXPECT_TRUE(prompts.Take(4, 4, 5, 6, Token(-8)).ok()) << "behind a gap";
  EXPECT_EQ(prompts.next(4), 3);
  EXPECT_EQ(prompts.next(5), 1);
  GeneratedSequence sequence;
  prompts.Describe(4, &sequence);
  ASSERT_EQ(sequence.prompt_log_probs_size(), 2);
  EXPECT_EQ(sequence.prompt_log_probs(0), -0.5f);
  EXPECT_EQ(sequence.prompt_log_probs(1), -1.5f);
  EXPECT_EQ(sequence.prompt_alternatives_size(), 0);
  EXPECT_EQ(sequence.prompt_policy_version(), 6u);
  GeneratedTokens nothing;
  prompts.Describe(5, &nothing);
  EXPECT_EQ(nothing.prompt_log_probs_size(), 0);
  EXPECT_FALSE(nothing.has_prompt_policy_version());
}

TEST(PromptLogProbs, WhatIsKnownInPartIsForgottenWhenTheWeightsChange) {
  PromptLogProbs prompts;
  constexpr int64_t kLength = 3;
  ASSERT_TRUE(prompts.Take(0, kLength, 1, 6, Token(-1)).ok());
  ASSERT_TRUE(prompts.Take(1, kLength, 1, 6, Token(-1)).ok());
  ASSERT_TRUE(prompts.Take(1, kLength, 2, 6, Token(-2)).ok());
  prompts.ForgetParts();
  EXPECT_EQ(prompts.next(0), 1);
  EXPECT_EQ(prompts.next(1), kLength) << "its samples may have begun";
  for (int64_t t = 1; t < kLength; ++t) ASSERT_TRUE(prompts.Take(0, kLength, t, 7, Token(-4)).ok());
  GeneratedSequence sequence;
  prompts.Describe(0, &sequence);
  EXPECT_THAT(sequence.prompt_log_probs(), ::testing::ElementsAre(-4, -4));
  EXPECT_EQ(sequence.prompt_policy_version(), 7u);
}

TEST(PromptLogProbs, TellsTheLikeliestTokens) {
  PromptLogProbs prompts;
  ASSERT_TRUE(prompts.Take(0, 4, 1, 6, Token(-2, {{7, -0.25f}, {3, -2}})).ok());
  GeneratedTokens tokens;
  prompts.Describe(0, &tokens);
  ASSERT_EQ(tokens.prompt_alternatives_size(), 1);
  EXPECT_EQ(tokens.prompt_alternatives(0).ids(0), 7);
  EXPECT_EQ(tokens.prompt_alternatives(0).log_probs(0), -0.25f);
  EXPECT_EQ(tokens.prompt_alternatives(0).ids(1), 3);
}

TEST(PromptLogProbs, NamesTheTokenThatCannotBeTold) {
  PromptLogProbs prompts;
  ASSERT_TRUE(prompts.Take(9, 4, 1, 6, Token(-1)).ok());
  const absl::Status status = prompts.Take(9, 4, 2, 6, absl::InternalError("logit 3 is NaN"));
  EXPECT_EQ(status, absl::InternalError("prompt 9, token 2: logit 3 is NaN"));
  EXPECT_EQ(prompts.next(9), 2);
}

}  // namespace
}  // namespace quartet

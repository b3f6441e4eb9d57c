#include "orchestrator/evaluation/evaluation_scores.h"

#include <gtest/gtest.h>

#include <bit>

namespace quartet {
namespace {

TEST(EvaluationScores, PassAtKIsTheShareOfAllChoicesWithARightOne) {
  for (int n = 1; n <= 10; ++n) {
    for (int right = 0; right <= n; ++right) {
      for (int k = 1; k <= n; ++k) {
        int choices = 0, passing = 0;
        for (unsigned chosen = 0; chosen < 1u << n; ++chosen) {
          if (std::popcount(chosen) != k) continue;
          ++choices;
          passing += (chosen & ((1u << right) - 1)) != 0;
        }
        EXPECT_NEAR(PassAtK(n, right, k), static_cast<double>(passing) / choices, 1e-12) << n << right << k;
      }
    }
  }
}

TEST(EvaluationScores, AVoteIsTheAnswersResult) {
  EXPECT_EQ(VoteOf("So 1 + 1 = 2, and\n\\boxed{1} is wrong: \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
  EXPECT_EQ(VoteOf("\\boxed{7} and \\boxed{unclosed"), "7");
  EXPECT_EQ(VoteOf("Step 1 #### 5\n#### 1,200 "), "1200");
  EXPECT_EQ(VoteOf("I think\nthe answer is $42$. \n\n"), "theansweris$42$");
  EXPECT_EQ(VoteOf("$42$."), "42");
  EXPECT_EQ(VoteOf("a, b"), "a,b");
  EXPECT_EQ(VoteOf(" \n"), "");
  EXPECT_EQ(VoteOf(""), "");
}

TEST(EvaluationScores, TheMostFrequentVoteOfKWins) {
  const std::vector<std::string> votes = {"a", "b", "a", "c", "b", "b"};
  const std::vector<bool> a = {true, false, true, false, false, false}, b = {false, true, false, false, true, true};
  EXPECT_DOUBLE_EQ(MajorityAtK(votes, a, 1), 2.0 / 6);
  EXPECT_DOUBLE_EQ(MajorityAtK(votes, a, 3), 0.5);  // a a b; b b c
  EXPECT_DOUBLE_EQ(MajorityAtK(votes, b, 3), 0.5);
  EXPECT_DOUBLE_EQ(MajorityAtK(votes, a, 6), 0);
  EXPECT_DOUBLE_EQ(MajorityAtK(votes, b, 6), 1);
  EXPECT_DOUBLE_EQ(MajorityAtK(votes, a, 2), 0.5 * 1 / 3 + 0.5 * 1 / 3);  // a|b, a|c, b
  EXPECT_DOUBLE_EQ(MajorityAtK(votes, b, 5), 0.5) << "the last answer is in no group of five; a and b have two each";
}

TEST(EvaluationScores, AnAnswerWithoutAResultHasNoVote) {
  EXPECT_EQ(MajorityAtK({"", "", "x"}, {false, false, true}, 3), 1);
  EXPECT_EQ(MajorityAtK({"", ""}, {true, true}, 2), 0);
}

}  // namespace
}  // namespace quartet

#include "rollout/engine/sampling/sampling_rule.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace quartet {
namespace {

TEST(SamplingRule, HasNoRepetitionPenaltyWhereNoneIsAskedFor) {
  SamplingParams sampling;
  EXPECT_EQ(MakeSamplingRule(sampling).repetition_penalty, 1);
  sampling.set_repetition_penalty(1.5f);
  (*sampling.mutable_logit_bias())[3] = 2;
  const SamplingRule rule = MakeSamplingRule(sampling);
  EXPECT_EQ(rule.repetition_penalty, 1.5f);
  EXPECT_EQ(rule.logit_bias, (std::vector<std::pair<int32_t, float>>{{3, 2.0f}}));
}

}  // namespace
}  // namespace quartet

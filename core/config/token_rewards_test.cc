// Which runs may have rewards of tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "core/rl/options/estimators.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Refusal(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"rollout.n_samples_per_prompt=2", "reward.source.0.command=judge",
                                       "reward.source.0.token_rewards=true"});
  return std::string(LoadRunConfig("", overrides, "").status().message());
}

TEST(TokenRewards, AreForEstimatorsThatDoNotCompareAnswers) {
  for (const AdvantageEstimator& estimator : AdvantageEstimators()) {
    const std::string name(estimator.name);
    std::vector<std::string> overrides = {"algorithm.advantage_estimator=" + name};
    if (estimator.by_program) overrides.emplace_back("algorithm.advantage_command.command=x");
    const bool takes = name == "gae" || name == "reinforce" || name == "reinforce_plus_plus" || name == "command";
    if (takes) {
      EXPECT_EQ(Refusal(overrides), "") << name;
      continue;
    }
    EXPECT_THAT(Refusal(overrides), AllOf(HasSubstr("reward.source[0].token_rewards"), HasSubstr("\"" + name + "\""),
                                          HasSubstr("\"gae\", \"reinforce\", \"reinforce_plus_plus\", \"command\"")));
  }
}

TEST(TokenRewards, AreOfProgramsAndServers) {
  EXPECT_THAT(
      std::string(LoadRunConfig("", {"reward.source.0.rule=math", "reward.source.0.token_rewards=true"}, "")
                      .status()
                      .message()),
      AllOf(HasSubstr("reward.source[0].token_rewards"), HasSubstr("only where the source has remote_url or command")));
}

TEST(TokenRewards, AreOfTheWholeAnswerAndOfNoGate) {
  EXPECT_THAT(Refusal({"reward.source.0.gate=true", "reward.source.1.rule=number"}),
              AllOf(HasSubstr("token_rewards"), HasSubstr("reward.source[0].gate")));
  EXPECT_THAT(Refusal({"reward.source.0.reasoning_delimiter=</think>"}),
              AllOf(HasSubstr("token_rewards"), HasSubstr("reward.source[0].reasoning_delimiter")));
}

TEST(TokenRewards, ThatAreZeroAreNotClampedToSomethingElse) {
  EXPECT_THAT(Refusal({"algorithm.reward_clip_min=0.5"}), HasSubstr("algorithm.reward_clip_min"));
  EXPECT_THAT(Refusal({"algorithm.reward_clip_max=-0.5"}), HasSubstr("algorithm.reward_clip_max"));
  EXPECT_EQ(Refusal({"algorithm.reward_clip_min=0"}), "");
}

}  // namespace
}  // namespace quartet

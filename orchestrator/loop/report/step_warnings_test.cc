#include "orchestrator/loop/report/step_warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Warnings, OfAConfigurationAreOfWhatHardlyAnyoneMeans) {
  const auto warnings = [](const std::vector<std::string>& overrides) {
    return ConfigurationWarnings(LoadRunConfig("", overrides, "").value());
  };
  EXPECT_THAT(warnings({}), IsEmpty());
  EXPECT_THAT(warnings({"actor.learning_rate=1e-3"}), IsEmpty());
  EXPECT_THAT(warnings({"actor.optim=sgd", "actor.learning_rate=0.1"}), IsEmpty());
  EXPECT_THAT(warnings({"actor.learning_rate=5", "critic.learning_rate=0.1"}),
              ElementsAre(HasSubstr("actor.learning_rate is 5"), HasSubstr("critic.learning_rate is 0.1")));
}

TEST(Warnings, SayThatAnEpisodeHasRoomForOneTurn) {
  const auto warnings = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"agent.command=a", "data.apply_chat_template=true", "data.prompt_max_len=100",
                                       "rollout.generate_max_len=50"});
    return ConfigurationWarnings(LoadRunConfig("", overrides, "").value());
  };
  EXPECT_THAT(warnings({}), ElementsAre(AllOf(HasSubstr("actor.max_len is 150"), HasSubstr("up to 16 turns"))));
  EXPECT_THAT(warnings({"agent.max_turns=1"}), IsEmpty());
  EXPECT_THAT(warnings({"actor.max_len=200"}), IsEmpty());
}

// With a source of rewards, unless `overrides` have sources.
RunConfig Config(std::vector<std::string> overrides = {}) {
  const auto is_of_source = [](const std::string& set) { return set.starts_with("reward.source"); };
  if (std::ranges::none_of(overrides, is_of_source)) overrides.push_back("reward.source.0.rule=number");
  return LoadRunConfig("", overrides, "").value();
}

Metrics MetricsOf(const std::map<std::string, double>& values) {
  Metrics metrics;
  for (const auto& [name, value] : values) metrics.Set(name, value);
  return metrics;
}

TEST(Warnings, OfRewardsThatStayEqualComeOnce) {
  const RunConfig config = Config();
  StepWarnings warnings(config);
  const Metrics equal = MetricsOf({{"reward/std", 0}, {"reward/mean", 1}}), other = MetricsOf({{"reward/std", 0.5}});
  for (int step = 1; step < StepWarnings::kIdleSteps; ++step) EXPECT_THAT(warnings.Of(equal), IsEmpty());
  EXPECT_THAT(warnings.Of(other), IsEmpty());
  for (int step = 1; step < StepWarnings::kIdleSteps; ++step) EXPECT_THAT(warnings.Of(equal), IsEmpty());
  EXPECT_THAT(warnings.Of(equal), ElementsAre(HasSubstr("learned from the last 5 steps: all rewards were equal (1)")));
  EXPECT_THAT(warnings.Of(equal), IsEmpty());
}

TEST(Warnings, SayWhyNothingIsLearned) {
  // What five steps with these metrics are told of.
  const auto said = [](const std::vector<std::string>& overrides, const std::map<std::string, double>& values) {
    const RunConfig config = Config(overrides);
    StepWarnings warnings(config);
    for (int step = 1; step < StepWarnings::kIdleSteps; ++step) {
      EXPECT_THAT(warnings.Of(MetricsOf(values)), IsEmpty());
    }
    return warnings.Of(MetricsOf(values));
  };
  const std::map<std::string, double> learning = {{"reward/std", 1},
                                                  {"reward/shaped_std", 1},
                                                  {"reward/clipped", 0.5},
                                                  {"reward/groups_without_signal", 0.75},
                                                  {"response_length/truncated", 0.5},
                                                  {"policy/grad_norm", 1},
                                                  {"policy/skipped", 0}};
  const auto with = [&](const std::map<std::string, double>& values) {
    std::map<std::string, double> all = values;
    all.insert(learning.begin(), learning.end());
    return all;
  };
  EXPECT_THAT(said({}, learning), IsEmpty());
  EXPECT_THAT(said({"reward.source.0.command=judge", "reward.source.0.token_rewards=true"},
                   with({{"reward/std", 0}, {"reward/shaped_std", 0}, {"token_rewards/before_last", 0.25}})),
              IsEmpty());
  EXPECT_THAT(said({"reward.source.0.command=judge", "reward.source.0.token_rewards=true"},
                   with({{"reward/std", 0}, {"reward/mean", 0.5}, {"token_rewards/before_last", 0}})),
              ElementsAre(HasSubstr("all rewards were equal (0.5)")));
  EXPECT_THAT(said({}, with({{"reward/shaped_std", 0}})),
              ElementsAre(HasSubstr("equal once they are clipped (algorithm.reward_clip_min and _max, -10 and 10)")));
  EXPECT_THAT(said({}, with({{"reward/groups_without_signal", 1}, {"reward/clipped", 0}})),
              ElementsAre(HasSubstr("between prompts and not between the answers to one prompt")));
  EXPECT_THAT(said({}, with({{"response_length/truncated", 1}})), IsEmpty());
  EXPECT_THAT(said({"reward.source.0.rule=math", "reward.source.0.weight=0", "reward.source.1.rule=finished",
                    "reward.source.1.gate=true"},
                   with({{"reward/std", 0}})),
              ElementsAre(HasSubstr("weight of every source of rewards is 0")));
  EXPECT_THAT(said({"rollout.generate_max_len=512"},
                   with({{"reward/std", 0}, {"reward/mean", 0}, {"reward/math/unfinished_reasoning", 1}})),
              ElementsAre(AllOf(HasSubstr("all rewards were equal (0), and reward/math/unfinished_reasoning is 1.00"),
                                HasSubstr("reasoning_delimiter is not"), HasSubstr("rollout.generate_max_len, 512"))));
  EXPECT_THAT(said({}, with({{"reward/std", 0}, {"reward/math/unfinished_reasoning", 0.5}})),
              ElementsAre(Not(HasSubstr("unfinished_reasoning"))));
  EXPECT_THAT(said({}, with({{"policy/grad_norm", 0}})), ElementsAre(HasSubstr("the policy's gradient was 0")));
  // Of such steps another warning tells.
  EXPECT_THAT(said({}, with({{"policy/grad_norm", 0}, {"policy/skipped", 1}})), IsEmpty());
}

TEST(Warnings, OfDistillationAreNotOfTheRewardsThatItHasNot) {
  const auto said = [](std::vector<std::string> overrides, const std::map<std::string, double>& values) {
    for (const char* set : {"actor.pretrain=/student", "algorithm.kl.init_kl_coef=1", "algorithm.gamma=0",
                            "algorithm.advantage_estimator=reinforce"}) {
      overrides.push_back(set);
    }
    const RunConfig config = LoadRunConfig("", overrides, "").value();
    StepWarnings warnings(config);
    std::vector<std::string> all;
    for (int step = 0; step < StepWarnings::kIdleSteps; ++step) {
      for (const std::string& warning : warnings.Of(MetricsOf(values))) all.push_back(warning);
    }
    return all;
  };
  const std::string teacher = "reference.pretrain=/teacher";
  const std::vector<std::string> judged = {teacher, "reward.source.0.rule=number", "reward.source.0.weight=0"};
  const std::map<std::string, double> learns = {{"policy/grad_norm", 1}, {"kl/mean", 12}};
  const std::map<std::string, double> done = {{"policy/grad_norm", 0}, {"policy/skipped", 0}, {"kl/mean", 0}};
  for (const auto& sources : {std::vector<std::string>{teacher}, judged}) {
    EXPECT_THAT(said(sources, learns), IsEmpty()) << "a student may be far from its teacher";
    EXPECT_THAT(said(sources, done),
                ElementsAre(HasSubstr("its teacher (reference.pretrain) give all tokens the same")));
  }
  EXPECT_THAT(said({judged[1], judged[2]}, learns), ElementsAre(HasSubstr("weight of every source of rewards is 0")))
      << "its own model is no teacher";
}

TEST(Warnings, OfStepsWhoseAnswersAreNearlyAllLeftOutComeOnce) {
  const RunConfig config = Config({"algorithm.overlong_filtering=true", "rollout.generate_max_len=512"});
  StepWarnings warnings(config);
  EXPECT_THAT(warnings.Of(MetricsOf({{"response_length/excluded", 0.5}})), IsEmpty());
  const Metrics most = MetricsOf({{"response_length/excluded", 0.96875}});
  EXPECT_THAT(warnings.Of(most), ElementsAre("97 % of a step's answers were cut off at rollout.generate_max_len (512) "
                                             "and are left out of the loss (algorithm.overlong_filtering)"));
  EXPECT_THAT(warnings.Of(most), IsEmpty());
  const Metrics all = MetricsOf({{"response_length/excluded", 1}, {"reward/std", 1}});
  for (int step = 1; step < StepWarnings::kIdleSteps; ++step) EXPECT_THAT(warnings.Of(all), IsEmpty());
  EXPECT_THAT(warnings.Of(all), ElementsAre(HasSubstr("last 5 steps: every answer was cut off at "
                                                      "rollout.generate_max_len (512)")));
}

TEST(Warnings, OfTriesAtScoringThatFailComeOnce) {
  const RunConfig config = Config();
  StepWarnings warnings(config);
  EXPECT_THAT(warnings.Of(MetricsOf({{"scorer/failed_tries", 0}})), IsEmpty());
  EXPECT_THAT(warnings.Of(MetricsOf({{"scorer/failed_tries", 3}})), ElementsAre(HasSubstr("3 have failed so far")));
  EXPECT_THAT(warnings.Of(MetricsOf({{"scorer/failed_tries", 4}})), IsEmpty());
}

TEST(Warnings, OfAPolicyThatHasLeftItsReferenceComeOnce) {
  const RunConfig config = Config();
  StepWarnings warnings(config);
  Metrics near, far;
  near.Set("kl/mean", 3.2);
  far.Set("kl/mean", 12.5);
  EXPECT_THAT(warnings.Of(near), IsEmpty());
  EXPECT_THAT(warnings.Of(far), ElementsAre(HasSubstr("KL from its reference is 12.5 a token")));
  EXPECT_THAT(warnings.Of(far), IsEmpty());
}

}  // namespace
}  // namespace quartet

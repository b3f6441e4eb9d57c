#include "orchestrator/loop/experience.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "core/config/origins/presets.h"
#include "core/config/run_config.h"
#include "core/rl/testing/token_arrays.h"
#include "orchestrator/loop/policy_loss.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

Experience MakeExperience(uint64_t index, int prompt_tokens, int action_tokens) {
  Experience e;
  for (int i = 0; i < prompt_tokens + action_tokens; ++i) {
    e.tokens.add_ids(static_cast<int32_t>(10 * index + i));
    e.tokens.add_action_mask(i >= prompt_tokens);
  }
  e.rollout_log_probs.assign(action_tokens, -1.0f);
  e.sampled_log_probs.assign(action_tokens, -0.75f);
  e.log_probs.assign(action_tokens, -1.0f);
  e.values.assign(action_tokens, 0.0f);
  e.advantages.assign(action_tokens, static_cast<float>(index));
  e.returns.assign(action_tokens, 0.0f);
  return e;
}

std::vector<TrainingArray> PolicyArraysOf(const RunConfig& config) {
  PolicyLossConfig loss = PolicyLossOf(config.algorithm(), 0.01);
  loss.set_own_old_log_probs(TakesOwnOldLogProbs(config));
  return PolicyArrays(config, loss);
}

RunConfig Resolved(int train_batch_size) {
  RunConfig config;
  EXPECT_TRUE(ResolveRunConfig(&config, "").ok());
  config.mutable_train()->set_train_batch_size(train_batch_size);
  return config;
}

// One epoch's optimizer steps, as they are sent.
std::vector<std::vector<TrainingSequence>> StepsOf(const RunConfig& config, const std::vector<Experience>& batch,
                                                   const std::vector<TrainingArray>& arrays, int64_t step,
                                                   int64_t epoch, int64_t count) {
  std::vector<std::vector<TrainingSequence>> steps;
  const auto cut = CutIntoOptimizerSteps(config, batch, step, epoch, count);
  EXPECT_TRUE(cut.ok()) << cut.status();
  for (const OptimizerStep& of : *cut) steps.push_back(MakeTrainingSequences(batch, arrays, of));
  return steps;
}

TEST(OptimizerSteps, HoldEverySequenceOnceAndWeighTokensAlike) {
  std::vector<Experience> batch;
  for (int i = 0; i < 7; ++i) batch.push_back(MakeExperience(i, 2, 1 + i % 3));
  const auto steps = StepsOf(Resolved(3), batch, PolicyArraysOf(Resolved(3)), 0, 0, 3);
  ASSERT_EQ(steps.size(), 3);
  std::multiset<float> seen;
  for (const auto& step : steps) {
    std::set<float> weights;
    double sum = 0;
    std::set<uint64_t> indices;
    for (const TrainingSequence& sequence : step) {
      seen.insert(ArrayOf(sequence, kAdvantages)[0]);
      indices.insert(sequence.tokens().index());
      EXPECT_EQ(ArrayOf(sequence, kLossWeights).size(), ArrayOf(sequence, kAdvantages).size());
      for (float weight : ArrayOf(sequence, kLossWeights)) {
        weights.insert(weight);
        sum += weight;
      }
    }
    EXPECT_EQ(indices.size(), step.size()) << "indices are unique within a call";
    EXPECT_EQ(weights.size(), 1) << "token mean";
    EXPECT_NEAR(sum, 1.0, 1e-6);
  }
  EXPECT_EQ(seen, (std::multiset<float>{0, 1, 2, 3, 4, 5, 6}));
}

TEST(ExperienceMetrics, TellWhatOfTheRewardsTeaches) {
  std::vector<Experience> batch;
  // Rewards 100 and 20 are both 10 once they are clipped, and the third group's are equal.
  const float rewards[] = {100, 20, 1, 0, 2, 2};
  for (int i = 0; i < 6; ++i) {
    batch.push_back(MakeExperience(i, 2, 2));
    batch.back().group = i / 2;
    batch.back().reward = rewards[i];
  }
  RunConfig config;
  config.mutable_algorithm()->set_advantage_estimator("rloo");
  config.mutable_algorithm()->set_reward_clip_placement("before_baseline");
  ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
  ASSERT_TRUE(ComputeAdvantages(config.algorithm(), 0, &batch).ok());
  Metrics metrics;
  AddExperienceMetrics(batch, /*has_rewards=*/true, &metrics);
  EXPECT_DOUBLE_EQ(*metrics.Get("reward/clipped"), 2.0 / 6);
  EXPECT_DOUBLE_EQ(*metrics.Get("reward/groups_without_signal"), 2.0 / 3);
  for (Experience& e : batch) e.excluded = true;
  AddExperienceMetrics(batch, /*has_rewards=*/true, &metrics);
  EXPECT_EQ(metrics.Get("reward/groups_without_signal"), 1);
}

// 49 times a 49th is less than 1.
TEST(ExperienceMetrics, OfPartsThatAreAllOneAreOne) {
  std::vector<Experience> batch(49);
  for (Experience& e : batch) e.reward_parts["command"] = e.extra_logs["format"] = 1;
  Metrics metrics;
  AddExperienceMetrics(batch, /*has_rewards=*/true, &metrics);
  EXPECT_EQ(metrics.Get("reward/command"), 1);
  EXPECT_EQ(metrics.Get("reward/format"), 1);
}

TEST(ExperienceMetrics, OfPartsThatSomeAnswersHaveAreTheirMean) {
  std::vector<Experience> batch(4);
  batch[1].reward_parts["math"] = 1;
  batch[3].reward_parts["math"] = 0.5f;
  batch[2].extra_logs["code/passed"] = 0.25f;
  Metrics metrics;
  AddExperienceMetrics(batch, /*has_rewards=*/true, &metrics);
  EXPECT_EQ(metrics.Get("reward/math"), 0.75);
  EXPECT_EQ(metrics.Get("reward/code/passed"), 0.25);
}

TEST(ExperienceMetrics, OfRewardsThatAreEqualButForRoundingHaveNoSpread) {
  std::vector<Experience> batch(4);
  for (size_t i = 0; i < batch.size(); ++i) batch[i].reward = i % 2 == 0 ? 0.35 : 0.35f;
  Metrics metrics;
  AddExperienceMetrics(batch, /*has_rewards=*/true, &metrics);
  EXPECT_EQ(metrics.Get("reward/std"), 0);
}

TEST(ExperienceMetrics, OfAnswersWithoutRewardsHaveNoneButWhatSourcesOfNoWeightSay) {
  std::vector<Experience> batch(2);
  batch[0].reward_parts["number"] = 1;
  batch[1].reward_parts["number"] = 0;
  Metrics metrics;
  AddExperienceMetrics(batch, /*has_rewards=*/false, &metrics);
  EXPECT_EQ(metrics.Get("reward/number"), 0.5);
  for (const char* name : {"reward/mean", "reward/std", "reward/shaped_std", "reward/clipped"}) {
    EXPECT_EQ(metrics.Get(name), std::nullopt) << name;
  }
  EXPECT_EQ(metrics.Get("reward/groups_without_signal"), 1);
}

// The advantage of a token is what its own reverse KL to the teacher, of one draw, is less than 0: of no other token,
// of no other answer, however large.
TEST(Distillation, ByItsPresetGivesATokenItsTeachersLogProbabilityLessItsOwn) {
  RunConfig config = ReadPreset("distill").value();
  config.mutable_reference()->set_pretrain("/teacher");
  config.mutable_actor()->set_pretrain("/student");
  ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
  std::vector<Experience> batch = {MakeExperience(0, 2, 3), MakeExperience(1, 2, 2)};
  batch[0].log_probs = {-1, -0.5f, -2};
  batch[0].reference_log_probs = {-1.5f, -0.25f, -32};
  batch[1].log_probs = {-3, -1};
  batch[1].reference_log_probs = {-0.5f, -1};
  ASSERT_TRUE(ComputeAdvantages(config.algorithm(), config.algorithm().kl().init_kl_coef(), &batch).ok());
  EXPECT_EQ(batch[0].advantages, (std::vector<float>{-0.5f, 0.25f, -30}));
  EXPECT_EQ(batch[1].advantages, (std::vector<float>{2.5f, 0}));
  EXPECT_EQ(config.algorithm().policy_loss(), "reinforce");
}

// A source of that name would stand in its place.
TEST(ExperienceMetrics, OfRewardsHaveNamesThatNoSourceMayHave) {
  Metrics metrics;
  AddExperienceMetrics(std::vector<Experience>(1), /*has_rewards=*/true, &metrics);
  int named = 0;
  for (const auto& [metric, value] : metrics.values()) {
    if (!absl::StartsWith(metric, "reward/")) continue;
    ++named;
    RunConfig config;
    RewardSource* source = config.mutable_reward()->add_source();
    source->set_rule("number");
    source->set_name(metric.substr(std::string_view("reward/").size()));
    EXPECT_THAT(std::string(ResolveRunConfig(&config, "").message()), HasSubstr("the metric " + metric));
  }
  EXPECT_GE(named, 5);
}

TEST(OptimizerSteps, AreShuffledByStepAndEpochAndRepeatable) {
  std::vector<Experience> batch;
  for (int i = 0; i < 16; ++i) batch.push_back(MakeExperience(i, 1, 1));
  const auto order = [&batch](int64_t step, int64_t epoch) {
    std::vector<float> order;
    const auto steps = StepsOf(Resolved(16), batch, PolicyArraysOf(Resolved(16)), step, epoch, 1);
    for (const TrainingSequence& sequence : steps[0]) order.push_back(ArrayOf(sequence, kAdvantages)[0]);
    return order;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
}

TEST(OptimizerSteps, TakeOldLogProbsFromWhereTheyAreToldTo) {
  std::vector<Experience> batch = {MakeExperience(0, 1, 2)};
  batch[0].log_probs = {-0.5f, -0.25f};
  RunConfig config = Resolved(1);
  EXPECT_EQ(ArrayOf(StepsOf(config, batch, PolicyArraysOf(config), 0, 0, 1)[0][0], kOldLogProbs)[1], -0.25f);
  config.mutable_algorithm()->set_old_log_prob_source("rollout");
  EXPECT_EQ(ArrayOf(StepsOf(config, batch, PolicyArraysOf(config), 0, 0, 1)[0][0], kOldLogProbs)[1], -0.75f);
}

TEST(OptimizerSteps, BringEachTrainerWhatItsLossReadsAlone) {
  Experience e = MakeExperience(0, 1, 2);
  e.sampled_log_probs = e.log_probs = e.reference_log_probs = e.values = e.returns = e.advantages = {1, 1};
  const auto sent = [&](const RunConfig& config, const std::vector<TrainingArray>& arrays) {
    return StepsOf(config, {e}, arrays, 0, 0, 1)[0][0];
  };
  RunConfig config = Resolved(/*train_batch_size=*/128);  // one optimizer step
  TrainingSequence policy = sent(config, PolicyArraysOf(config));
  EXPECT_EQ(ArrayOf(policy, kAdvantages).size(), 2);
  EXPECT_EQ(ArrayOf(policy, kOldLogProbs).size(), 0) << "the update's own are taken";
  EXPECT_EQ(ArrayOf(policy, kRolloutLogProbs).size() + ArrayOf(policy, kReferenceLogProbs).size(), 0);
  EXPECT_EQ(ArrayOf(policy, kOldValues).size() + ArrayOf(policy, kReturns).size(), 0) << "the critic's";
  config.mutable_algorithm()->mutable_importance_correction()->set_mode("token_truncate");
  config.mutable_algorithm()->mutable_kl()->set_use_kl_loss(true);
  policy = sent(config, PolicyArraysOf(config));
  EXPECT_EQ(ArrayOf(policy, kRolloutLogProbs).size(), 2);
  EXPECT_EQ(ArrayOf(policy, kReferenceLogProbs).size(), 2);
  const TrainingSequence critic = sent(config, CriticArrays());
  EXPECT_EQ(ArrayOf(critic, kOldValues).size(), 2);
  EXPECT_EQ(ArrayOf(critic, kReturns).size(), 2);
  EXPECT_EQ(ArrayOf(critic, kAdvantages).size() + ArrayOf(critic, kOldLogProbs).size() +
                ArrayOf(critic, kRolloutLogProbs).size(),
            0);
}

TEST(ExperienceMetrics, ExplainTheVarianceOfReturns) {
  std::vector<Experience> batch = {MakeExperience(0, 1, 2), MakeExperience(1, 1, 2)};
  batch[0].returns = {1, 1};
  batch[1].returns = {0, 0};
  batch[0].values = {0.5f, 1.0f};
  batch[1].values = {0.5f, 0.0f};
  Metrics metrics;
  AddExperienceMetrics(batch, /*has_rewards=*/true, &metrics);
  // Returns: variance 0.25. Errors 0.5, 0, -0.5, 0: variance 0.125.
  EXPECT_NEAR(*metrics.Get("critic/explained_variance"), 0.5, 1e-6);
  EXPECT_FALSE(metrics.Get("kl/mean").has_value());
}

}  // namespace
}  // namespace quartet

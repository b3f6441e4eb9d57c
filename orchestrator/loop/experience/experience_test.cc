#include "orchestrator/loop/experience/experience.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "core/config/origins/presets.h"
#include "core/config/run_config.h"
#include "core/rl/testing/token_arrays.h"
#include "orchestrator/loop/experience/policy_loss.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

Experience MakeExperience(uint64_t index, int prompt_tokens, int action_tokens) {
  Experience e;
  TokenSequence& tokens = e.sequences.emplace_back();
  for (int i = 0; i < prompt_tokens + action_tokens; ++i) {
    tokens.add_ids(static_cast<int32_t>(10 * index + i));
    tokens.add_action_mask(i >= prompt_tokens);
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

// A conversation of two turns of 2 and 3 tokens, with a token of a tool between them, as one sequence; and as two.
Experience TwoTurns(uint64_t index) {
  Experience e = MakeExperience(index, 2, 6);
  e.sequences[0].set_action_mask(4, false);
  const auto number = static_cast<float>(index);
  e.rollout_log_probs = e.sampled_log_probs = {-0.5f, -0.25f, -1, -0.75f, -number};
  e.log_probs = {-0.5f, -0.5f, -1, -0.75f, -number - 0.5f};
  e.reference_log_probs = {-1, -0.25f, -2, -0.5f, -number};
  e.values = {0.5f, 0.25f, -0.5f, 0.125f, number};
  e.reward = index % 2 == 0 ? 1 : -0.5;
  e.group = static_cast<int64_t>(index / 2);
  return e;
}

Experience CutIntoTurns(Experience e) {
  TokenSequence& first = e.sequences.emplace_back(e.sequences[0]);
  std::swap(first, e.sequences[0]);
  TokenSequence& turn = e.sequences[0];
  turn.mutable_ids()->Truncate(4);
  turn.mutable_action_mask()->Truncate(4);
  for (const int drawn_before : {2, 3}) e.sequences[1].set_action_mask(drawn_before, false);
  return e;
}

std::vector<float> EndToEnd(const std::vector<TrainingSequence>& sequences, std::string_view array) {
  std::vector<float> values;
  for (const TrainingSequence& sequence : sequences) {
    const auto& own = ArrayOf(sequence, array);
    const auto& mask = sequence.tokens().action_mask();
    EXPECT_EQ(own.size(), std::count(mask.begin(), mask.end(), true)) << array;
    values.insert(values.end(), own.begin(), own.end());
  }
  return values;
}

class AnswersInSeveralSequences : public ::testing::Test {
 protected:
  AnswersInSeveralSequences() {
    for (uint64_t i = 0; i < 4; ++i) {
      whole_.push_back(TwoTurns(i));
      cut_.push_back(CutIntoTurns(TwoTurns(i)));
    }
    for (std::vector<Experience>* batch : {&whole_, &cut_}) batch->push_back(MakeExperience(9, 3, 4));
    whole_.back().reference_log_probs = cut_.back().reference_log_probs = {-1, -2, -3, -4};
  }

  std::vector<Experience> whole_, cut_;
};

TEST_F(AnswersInSeveralSequences, HaveTheAdvantagesAndMetricsOfThoseInOne) {
  for (const char* estimator : {"gae", "reinforce", "rloo", "grpo"}) {
    RunConfig config;
    config.mutable_algorithm()->set_advantage_estimator(estimator);
    ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
    Metrics of_whole, of_cut;
    for (const auto& [batch, metrics] : {std::pair(&whole_, &of_whole), std::pair(&cut_, &of_cut)}) {
      ASSERT_TRUE(ComputeAdvantages(config.algorithm(), 0.1, batch).ok());
      AddExperienceMetrics(*batch, /*has_rewards=*/true, metrics);
    }
    for (size_t i = 0; i < whole_.size(); ++i) {
      EXPECT_EQ(cut_[i].advantages, whole_[i].advantages) << estimator;
      EXPECT_EQ(cut_[i].returns, whole_[i].returns) << estimator;
    }
    EXPECT_EQ(of_cut.values(), of_whole.values()) << estimator;
    EXPECT_EQ(of_cut.Get("response_length/mean"), 24.0 / 5);
    EXPECT_EQ(BatchKl(cut_, KlMean::kSequence), BatchKl(whole_, KlMean::kSequence));
  }
}

TEST_F(AnswersInSeveralSequences, AreSentWholeAndWeighAsThoseInOne) {
  for (const char* aggregation : {"token_mean", "sequence_mean", "sequence_sum_over_constant"}) {
    RunConfig config = Resolved(3);
    config.mutable_algorithm()->set_loss_aggregation(aggregation);
    config.mutable_algorithm()->set_loss_constant(7);
    ASSERT_TRUE(ComputeAdvantages(config.algorithm(), 0.1, &whole_).ok());
    ASSERT_TRUE(ComputeAdvantages(config.algorithm(), 0.1, &cut_).ok());
    for (const std::vector<TrainingArray>& arrays : {PolicyArraysOf(config), CriticArrays()}) {
      const auto of_whole = StepsOf(config, whole_, arrays, 0, 0, 2), of_cut = StepsOf(config, cut_, arrays, 0, 0, 2);
      ASSERT_EQ(of_cut[0].size() + of_cut[1].size(), 9);
      for (size_t s = 0; s < 2; ++s) {
        EXPECT_EQ(EndToEnd(of_cut[s], kLossWeights), EndToEnd(of_whole[s], kLossWeights)) << aggregation;
        for (const TrainingArray& array : arrays) {
          EXPECT_EQ(EndToEnd(of_cut[s], array.name), EndToEnd(of_whole[s], array.name)) << array.name;
        }
        for (size_t i = 0; i < of_cut[s].size(); ++i) EXPECT_EQ(of_cut[s][i].tokens().index(), i);
      }
    }
  }
}

// Its ratio is a product of those of a sequence's tokens: each token's gradient has the advantages of all of them.
TEST_F(AnswersInSeveralSequences, HaveAsMuchAdvantageWhereARatioIsAProduct) {
  RunConfig config = Resolved(128);
  config.mutable_algorithm()->set_policy_loss("sequence_ppo");
  whole_[0].advantages = cut_[0].advantages = std::vector<float>(5, 0.5f);
  const auto sent = [&](const Experience& e) { return StepsOf(config, {e}, PolicyArraysOf(config), 0, 0, 1)[0]; };
  for (const Experience& e : {whole_[0], cut_[0]}) {
    for (const TrainingSequence& sequence : sent(e)) {
      const auto& own = ArrayOf(sequence, kAdvantages);
      EXPECT_FLOAT_EQ(std::accumulate(own.begin(), own.end(), 0.0f), 5 * 0.5f);
    }
  }
}

TEST_F(AnswersInSeveralSequences, AreSentWithoutThoseThatHaveNoAction) {
  cut_[0].sequences.push_back(whole_[0].sequences[0]);
  for (int i = 0; i < cut_[0].sequences[2].ids_size(); ++i) cut_[0].sequences[2].set_action_mask(i, false);
  EXPECT_EQ(StepsOf(Resolved(128), {cut_[0]}, CriticArrays(), 0, 0, 1)[0].size(), 2);
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

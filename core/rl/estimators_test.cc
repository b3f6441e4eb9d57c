// Against the peers' own functions (tools/golden/rl_estimators.py), and cases worked out by hand.
#include "core/rl/options/estimators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/config/run_config.h"
#include "core/rl/advantages.h"
#include "core/rl/aggregation.h"
#include "core/rl/kl.h"
#include "core/rl/learning_rate.h"
#include "core/rl/rewards.h"
#include "core/rl/testing/golden_comparison.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const json& Golden() {
  static const json golden = [] {
    std::ifstream file("core/rl/testdata/estimators.json");
    return json::parse(file);
  }();
  return golden;
}

template <typename T>
using Ragged = std::vector<std::vector<T>>;

template <typename T>
void Append(const std::vector<T>& values, std::vector<T>* to) {
  to->insert(to->end(), values.begin(), values.end());
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

template <typename T>
class Goldens : public testing::Test {};
using Precisions = testing::Types<double, float>;
TYPED_TEST_SUITE(Goldens, Precisions);

// The golden batch, with the KL penalty of its estimates.
template <typename T>
struct Batch {
  Ragged<T> kl, values;
  std::vector<ScoredSequence<T>> sequences;

  Batch() : values(Golden()["values"].get<Ragged<T>>()) {
    const Ragged<T> log_probs = Golden()["log_probs"], reference = Golden()["reference_log_probs"];
    for (size_t i = 0; i < values.size(); ++i) {
      kl.push_back(EstimateKl(std::span<const T>(log_probs[i]), std::span<const T>(reference[i]), KlEstimator::kK1));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      sequences.push_back({.group = Golden()["groups"][i],
                           .reward = Golden()["rewards"][i],
                           .tokens = values[i].size(),
                           .excluded = Golden()["excluded"][i],
                           .kl = kl[i],
                           .values = values[i]});
    }
  }
};

// Resolved, with "leaf=value" over the defaults and, unless they say so, without a clip of rewards.
AlgorithmConfig Algorithm(const std::string& estimator, const std::vector<std::string>& leaves) {
  std::vector<std::string> settings = {"rollout.n_samples_per_prompt=2", "algorithm.advantage_estimator=" + estimator,
                                       "algorithm.reward_clip_min=-1e30", "algorithm.reward_clip_max=1e30"};
  for (const std::string& leaf : leaves) settings.push_back("algorithm." + leaf);
  const auto config = LoadRunConfig("", settings, "");
  EXPECT_TRUE(config.ok()) << config.status();
  return config->algorithm();
}

// `golden`'s options by their names in configurations.
std::vector<std::string> LeavesOf(const json& golden) {
  const AdvantageEstimator& estimator = *FindEstimator(golden["estimator"].get<std::string>());
  std::vector<std::string> leaves;
  for (const auto& [name, field] : {std::pair("gamma", "gamma"),
                                    {"lambda", "lambd"},
                                    {"grpo_epsilon", "group_std_eps"},
                                    {"kl_placement", "kl.kl_placement"},
                                    {"reward_clip_placement", "reward_clip_placement"},
                                    {"group_baseline", "group_baseline"},
                                    {"grpo_scale", "group_std_scale"},
                                    {"normalization", "advantage_normalization"},
                                    {"whitening_variance", "whitening_variance"}}) {
    if (!golden.contains(name)) continue;
    // The peers' functions are given these whether they use them or not.
    if (std::string(name) == "lambda" && !estimator.needs_critic) continue;
    if (std::string(name) == "grpo_epsilon" && !estimator.divides) continue;
    const json& value = golden[name];
    leaves.push_back(absl::StrCat(field, "=", value.is_string() ? value.get<std::string>() : value.dump()));
  }
  if (golden.contains("clip")) {
    leaves.push_back("reward_clip_min=" + golden["clip"][0].dump());
    leaves.push_back("reward_clip_max=" + golden["clip"][1].dump());
  }
  return leaves;
}

TYPED_TEST(Goldens, AdvantagesAndReturnsAreThoseOfEveryPeer) {
  const Batch<TypeParam> batch;
  ASSERT_EQ(Golden()["advantages"].size(), 38);
  for (const json& golden : Golden()["advantages"]) {
    SCOPED_TRACE(golden["peer"].dump() + golden["options"].dump());
    const json& options = golden["options"];
    const AlgorithmConfig algorithm = Algorithm(options["estimator"], LeavesOf(options));
    const auto results = EstimateAdvantages(batch.sequences, algorithm,
                                            options.value("kl_coefficient", Golden()["kl_coefficient"].get<double>()));
    std::vector<TypeParam> advantages, returns;
    std::vector<double> their_advantages, their_returns;
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].advantages.size(), batch.sequences[i].tokens);
      if (batch.sequences[i].excluded) continue;  // the peers have nothing there
      Append(results[i].advantages, &advantages);
      Append(golden["advantages"][i].get<std::vector<double>>(), &their_advantages);
      if (!golden.contains("returns")) continue;
      Append(results[i].returns, &returns);
      Append(golden["returns"][i].get<std::vector<double>>(), &their_returns);
    }
    const std::string name = golden["options"]["estimator"];
    ExpectGolden<TypeParam>(advantages, their_advantages, "advantages and returns, " + name, golden["peer"]);
    ExpectGolden<TypeParam>(returns, their_returns, "advantages and returns, " + name, golden["peer"]);
  }
}

// The KL penalties on top, and each token's reward clamped, as verl and OpenRLHF do with what they are given.
TYPED_TEST(Goldens, AdvantagesOfRewardsOfTokensAreThoseOfEveryPeer) {
  Batch<TypeParam> batch;
  const Ragged<TypeParam> token_rewards = Golden()["token_rewards"];
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    batch.sequences[i].token_rewards = token_rewards[i];
    batch.sequences[i].reward = std::accumulate(token_rewards[i].begin(), token_rewards[i].end(), 0.0);
  }
  ASSERT_EQ(Golden()["token_reward_advantages"].size(), 10);
  for (const json& golden : Golden()["token_reward_advantages"]) {
    SCOPED_TRACE(golden["peer"].dump() + golden["options"].dump());
    const std::string estimator = golden["options"]["estimator"];
    const auto results = EstimateAdvantages(batch.sequences, Algorithm(estimator, LeavesOf(golden["options"])),
                                            Golden()["kl_coefficient"].get<double>());
    std::vector<TypeParam> advantages, returns;
    std::vector<double> their_advantages, their_returns;
    for (size_t i = 0; i < results.size(); ++i) {
      if (batch.sequences[i].excluded) continue;
      Append(results[i].advantages, &advantages);
      Append(golden["advantages"][i].get<std::vector<double>>(), &their_advantages);
      Append(results[i].returns, &returns);
      Append(golden["returns"][i].get<std::vector<double>>(), &their_returns);
    }
    const std::string name = "rewards of tokens, " + estimator;
    ExpectGolden<TypeParam>(advantages, their_advantages, name, golden["peer"]);
    ExpectGolden<TypeParam>(returns, their_returns, name, golden["peer"]);
  }
}

TYPED_TEST(Goldens, KlIsThatOfEveryPeer) {
  const Ragged<TypeParam> log_probs = Golden()["log_probs"];
  ASSERT_EQ(Golden()["kl"].size(), 14);
  for (const json& golden : Golden()["kl"]) {
    const std::string estimator = golden["estimator"], clamp = golden["clamp"];
    SCOPED_TRACE(golden["peer"].dump() + estimator);
    const Ragged<TypeParam> reference = Golden()[golden["far"] ? "far_log_probs" : "reference_log_probs"];
    for (size_t i = 0; i < log_probs.size(); ++i) {
      const auto kl = EstimateKl(std::span<const TypeParam>(log_probs[i]), std::span<const TypeParam>(reference[i]),
                                 *ParseKlEstimator(estimator), *ParseKlClamp(clamp));
      const std::vector<double> theirs = golden["kl"][i];
      ASSERT_EQ(kl.size(), theirs.size());
      for (size_t t = 0; t < kl.size(); ++t) {  // one by one: they differ by orders of magnitude
        ExpectGolden<TypeParam>(std::span(kl).subspan(t, 1), std::span(theirs).subspan(t, 1), "KL, " + estimator,
                                golden["peer"]);
      }
    }
  }
}

TYPED_TEST(Goldens, MeansOfKlAreThoseOfEveryPeer) {
  const Batch<TypeParam> batch;
  const std::vector<std::span<const TypeParam>> kl(batch.kl.begin(), batch.kl.end());
  for (const json& golden : Golden()["kl_means"]) {
    const TypeParam ours = static_cast<TypeParam>(*MeanKl(kl, *ParseKlMean(golden["mean"].get<std::string>())));
    ExpectGolden<TypeParam>(std::vector{ours}, std::vector{golden["value"].get<double>()}, "mean of KL",
                            golden["peer"]);
  }
}

TYPED_TEST(Goldens, AggregationIsThatOfEveryPeer) {
  const Ragged<TypeParam> losses = Golden()["losses"];
  std::vector<AggregatedSequence> sequences;
  for (size_t i = 0; i < losses.size(); ++i) {
    sequences.push_back({static_cast<int64_t>(losses[i].size()), Golden()["excluded"][i].get<bool>()});
  }
  ASSERT_EQ(Golden()["aggregations"].size(), 5);
  for (const json& golden : Golden()["aggregations"]) {
    const std::string name = golden["aggregation"];
    const auto weights = LossWeights<TypeParam>(sequences, *ParseLossAggregation(name), golden["constant"]);
    TypeParam sum = 0;
    for (size_t i = 0; i < losses.size(); ++i) {
      for (TypeParam loss : losses[i]) sum += weights[i] * loss;
    }
    ExpectGolden<TypeParam>(std::vector{sum}, std::vector{golden["loss"].get<double>()}, "aggregation, " + name,
                            golden["peer"]);
  }
}

TEST(Kl, IsExactForSmallDifferences) {
  // exp(-d) - 1 + d cancels catastrophically in fp32: at d = 1e-4 it is 5e-9.
  const float d = 1e-4f;
  EXPECT_NEAR(EstimateKl(std::vector<float>{d}, std::vector<float>{0}, KlEstimator::kK3)[0], 0.5 * d * d, 1e-12);
}

TEST(Kl, IsClampedWhereAskedTo) {
  const std::vector<double> low = {-20}, zero = {0};
  EXPECT_THAT(EstimateKl(low, zero, KlEstimator::kK1, KlClamp::kAll), ElementsAre(-10));
  EXPECT_THAT(EstimateKl(low, zero, KlEstimator::kK1, KlClamp::kK3Only), ElementsAre(-20));
  EXPECT_THAT(EstimateKl(low, zero, KlEstimator::kK3, KlClamp::kK3Only), ElementsAre(10));
  EXPECT_THAT(EstimateKl(low, zero, KlEstimator::kK3, KlClamp::kNone), ElementsAre(std::exp(20.0) - 21));
}

TEST(Kl, OfNoTokensHasNoMean) {
  const std::vector<std::span<const float>> kl(2);
  EXPECT_FALSE(MeanKl(kl, KlMean::kToken).has_value());
  EXPECT_FALSE(MeanKl(kl, KlMean::kSequence).has_value());
}

TEST(KlController, AgreesWithThePeers) {
  ASSERT_EQ(Golden()["kl_controllers"].size(), 2);
  for (const json& golden : Golden()["kl_controllers"]) {
    KlController controller(golden["initial"], golden["target"], golden["horizon"]);
    for (const json& step : golden["steps"]) {
      controller.Update(step["kl"], step["sequences"]);
      ExpectGolden<double>(std::vector{controller.coefficient()}, std::vector{step["coefficient"].get<double>()},
                           "adaptive KL coefficient", golden["peer"]);
    }
  }
}

TEST(KlController, StaysFixedWithoutATarget) {
  KlController controller(0.01, 0, 10000);
  controller.Update(100, 64);
  EXPECT_EQ(controller.coefficient(), 0.01);
}

TEST(Rewards, ArePenalizedForLengthAsByThePeers) {
  const json& golden = Golden()["length_penalties"];
  for (const auto& [peer, penalties] : golden["penalties"].items()) {
    for (size_t i = 0; i < penalties.size(); ++i) {
      const double ours =
          OverlongPenalty(golden["lengths"][i], golden["max_new_tokens"], golden["buffer"], golden["factor"]);
      ExpectGolden<double>(std::vector{ours}, std::vector{penalties[i].get<double>()}, "overlong penalty", peer);
    }
  }
}

TEST(Groups, AreKeptByEitherDefinitionOfASignal) {
  const std::vector<double> right = {1, 1, 1}, mixed = {1, 0, 1}, thirds = {0.1, 0.1, 0.1}, one = {1};
  for (const auto* group : {&right, &mixed, &one}) EXPECT_TRUE(KeepsGroup(*group, GroupFilter::kNone, 0, 1));
  EXPECT_FALSE(KeepsGroup(right, GroupFilter::kNotEqual, 0, 1));
  EXPECT_FALSE(KeepsGroup(thirds, GroupFilter::kNotEqual, 0, 1));
  EXPECT_TRUE(KeepsGroup(mixed, GroupFilter::kNotEqual, 0, 1));
  EXPECT_FALSE(KeepsGroup(one, GroupFilter::kNotEqual, 0, 1)) << "what is left of a group has nothing to differ from";
  EXPECT_FALSE(KeepsGroup(right, GroupFilter::kMeanInside, 0, 1));
  EXPECT_FALSE(KeepsGroup(one, GroupFilter::kMeanInside, 0, 1));
  EXPECT_TRUE(KeepsGroup(mixed, GroupFilter::kMeanInside, 0, 1));
  EXPECT_TRUE(KeepsGroup(thirds, GroupFilter::kMeanInside, 0, 1));
}

TEST(Groups, WhoseMetricsDifferByRoundingAloneHaveNoSignal) {
  const std::vector<double> sums = {0.1 + 0.2, 0.3, 0.3f}, right = {1, 1 - 1e-16, 0.7 + 0.1 + 0.2f}, zero = {0, -0.0};
  for (const auto* group : {&sums, &right, &zero}) EXPECT_FALSE(KeepsGroup(*group, GroupFilter::kNotEqual, 0, 1));
  EXPECT_FALSE(KeepsGroup(right, GroupFilter::kMeanInside, 0, 1));
  EXPECT_FALSE(KeepsGroup(sums, GroupFilter::kMeanInside, 0.3, 1));
  const std::vector<double> apart = {0.3, 0.30001}, small = {0, 1e-6}, whole = {0, 0, 1};
  for (const auto* group : {&apart, &small, &whole}) EXPECT_TRUE(KeepsGroup(*group, GroupFilter::kNotEqual, 0, 1));
}

// As a reward function in fp32 makes of 0.3 - 0.2 - 0.1, or a gate that is nearly closed of 1.
TEST(Groups, WhoseMetricsAreAllNearlyZeroHaveNoSignal) {
  const std::vector<std::vector<double>> groups = {{0, 1e-9}, {0, 1e-30}, {-1e-9, 1e-9}, {0, 0.3f - 0.2f - 0.1f, 5e-8}};
  for (const auto& group : groups) {
    EXPECT_FALSE(KeepsGroup(group, GroupFilter::kNotEqual, 0, 1));
    EXPECT_FALSE(KeepsGroup(group, GroupFilter::kMeanInside, 0, 1));
    for (const AdvantageEstimator& estimator : AdvantageEstimators()) {
      if (!estimator.compares()) continue;
      std::vector<double> compared = group;
      estimator.compare(Algorithm(std::string(estimator.name), {}), MomentsOf(compared), compared);
      EXPECT_THAT(compared, Each(0)) << estimator.name;
    }
  }
}

TEST(Rewards, ThatCancelButForRoundingAddUpToZero) {
  EXPECT_EQ(AddRewards(std::vector<double>{0.3, -0.2, -0.1}), 0);
  EXPECT_EQ(AddRewards(std::vector<double>{0.35f, -0.35}), 0);
  EXPECT_EQ(AddRewards(std::vector<double>{0.3, -0.2, -0.125}), 0.3 - 0.2 - 0.125);
  EXPECT_EQ(AddRewards(std::vector<double>{1e-30}), 1e-30);
  EXPECT_EQ(AddRewards({}), 0);
}

// One sequence a reward, all of one group, of one token each.
std::vector<double> AdvantagesOfRewards(const std::vector<double>& rewards, const AlgorithmConfig& algorithm) {
  std::vector<ScoredSequence<double>> batch;
  for (double r : rewards) batch.push_back({.group = 7, .reward = r, .tokens = 1});
  std::vector<double> advantages;
  for (const auto& result : EstimateAdvantages(batch, algorithm, /*kl_coefficient=*/0)) {
    advantages.push_back(result.advantages.at(0));
  }
  return advantages;
}

TEST(Advantages, WithoutKlStandAtTheLastTokenAlone) {
  const std::vector<double> values = {0.5, 0.25, 3};
  const auto result = EstimateAdvantages<double>(
      {{.reward = 50, .tokens = 3, .values = values}},
      Algorithm("gae", {"reward_clip_min=-10", "reward_clip_max=10", "advantage_normalization=none"}), 0);
  EXPECT_THAT(result[0].returns, ElementsAre(10, 10, 10));
  EXPECT_THAT(result[0].advantages, ElementsAre(9.5, 9.75, 7));
}

TEST(Advantages, OfARewardOfTheLastTokenAloneAreThoseOfOneNumber) {
  const std::vector<double> values = {0.5, 0.25, 3}, tokens = {0, 0, 50};
  for (const AdvantageEstimator& estimator : AdvantageEstimators()) {
    if (!estimator.takes_token_rewards() || estimator.by_program) continue;
    const AlgorithmConfig algorithm =
        Algorithm(std::string(estimator.name),
                  {"gamma=0.9", "reward_clip_min=-10", "reward_clip_max=10", "advantage_normalization=none"});
    ScoredSequence<double> sequence = {.reward = 50, .tokens = 3, .values = values};
    const auto whole = EstimateAdvantages<double>({sequence}, algorithm, 0);
    sequence.token_rewards = tokens;
    const auto by_token = EstimateAdvantages<double>({sequence}, algorithm, 0);
    EXPECT_EQ(by_token[0].advantages, whole[0].advantages) << estimator.name;
    EXPECT_EQ(by_token[0].returns, whole[0].returns) << estimator.name;
    EXPECT_EQ(by_token[0].shaped_reward, whole[0].shaped_reward) << estimator.name;
    EXPECT_TRUE(by_token[0].clipped && whole[0].clipped) << estimator.name;
  }
}

TEST(Advantages, OfRewardsOfTokensAreOfEachClipped) {
  const std::vector<double> tokens = {1, -20, 0.5};
  const AlgorithmConfig algorithm =
      Algorithm("reinforce", {"reward_clip_min=-2", "reward_clip_max=0.75", "advantage_normalization=none"});
  const auto result =
      EstimateAdvantages<double>({{.reward = -18.5, .token_rewards = tokens, .tokens = 3}}, algorithm, 0);
  EXPECT_THAT(result[0].advantages, ElementsAre(-0.75, -1.5, 0.5));
  EXPECT_EQ(result[0].shaped_reward, -0.75);
  EXPECT_TRUE(result[0].clipped);
}

TEST(Advantages, OfAGroupOfOneAreZeroWhereRewardsAreCompared) {
  for (const AdvantageEstimator& estimator : AdvantageEstimators()) {
    if (!estimator.compares()) continue;
    EXPECT_THAT(AdvantagesOfRewards({3}, Algorithm(std::string(estimator.name), {})), ElementsAre(0)) << estimator.name;
  }
}

TEST(Advantages, OfAGroupWithoutSignalAreExactlyZero) {
  for (const std::string baseline : {"mean", "leave_one_out"}) {
    EXPECT_THAT(AdvantagesOfRewards({0.1, 0.1, 0.1}, Algorithm("grpo", {"group_baseline=" + baseline})),
                ElementsAre(0, 0, 0));
  }
}

// Rewards that fp32 cannot hold, as what weights of 0.05 and their like add up to: 0.3 + 0.05 and 0.35.
TEST(Advantages, OfAGroupWhoseRewardsDifferByRoundingAloneAreExactlyZero) {
  // A reward model's: last bits that micro-batches differ in.
  const std::vector<std::vector<double>> groups = {
      {0.3f + 0.05, 0.35f, 0.35, 0.35}, {0.1 + 0.2, 0.3, 0.3, 0.3}, {-7.1234565f, -7.123457f, -7.1234575f, -7.123456f}};
  for (const auto& rewards : groups) {
    for (const AdvantageEstimator& estimator : AdvantageEstimators()) {
      if (!estimator.compares()) continue;
      EXPECT_THAT(AdvantagesOfRewards(rewards, Algorithm(std::string(estimator.name), {})), ElementsAre(0, 0, 0, 0))
          << estimator.name;
    }
    EXPECT_THAT(AdvantagesOfRewards(rewards, Algorithm("grpo", {"group_baseline=leave_one_out"})),
                ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(AdvantagesOfRewards(rewards, Algorithm("grpo", {"group_std_scale=batch"})), ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(AdvantagesOfRewards(rewards, Algorithm("reinforce_plus_plus", {})), ElementsAre(0, 0, 0, 0));
  }
}

// (r - mean) / (stdev + 1e-4), as TRL's GRPO has it, by Python's statistics.
TEST(Advantages, OfRewardsThatDifferByAWeightAreAsEver) {
  const AlgorithmConfig algorithm = Algorithm("grpo", {"group_std_eps=1e-4"});
  const std::vector<double> few = AdvantagesOfRewards({0.35, 0.35, 0.4, 0.3}, algorithm);
  const std::vector<double> near = AdvantagesOfRewards({1.35, 1.3, 1.35, 1.35}, algorithm);
  const double want_few[] = {0.0, 0.0, 1.221752201904801, -1.2217522019047997},
               want_near[] = {0.4980079681274878, -1.4940239043824723, 0.4980079681274878, 0.4980079681274878};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(few[i], want_few[i], 1e-12);
    EXPECT_NEAR(near[i], want_near[i], 1e-12);
  }
}

TEST(Advantages, AreNotDividedByTheDeviationOfOthersThatAgree) {
  const AlgorithmConfig algorithm = Algorithm("grpo", {"group_baseline=leave_one_out"});
  EXPECT_THAT(AdvantagesOfRewards({1.1, 0.1, 0.1, 0.1}, algorithm)[0], 1.0);
  EXPECT_THAT(AdvantagesOfRewards({1, 0}, algorithm), ElementsAre(1, -1));
}

TEST(Advantages, CountRewardsOfSequencesThatAreEmptyOrExcluded) {
  const std::vector<ScoredSequence<double>> batch = {
      {.reward = 1, .tokens = 1}, {.reward = 0, .tokens = 0}, {.reward = 5, .tokens = 2, .excluded = true}};
  const auto results = EstimateAdvantages(batch, Algorithm("dr_grpo", {"advantage_normalization=center"}), 0);
  // Less the group's mean of 2 that is -1, -2 and 3; less the mean of what is in the loss, -1.
  EXPECT_THAT(results[0].advantages, ElementsAre(0));
  EXPECT_TRUE(results[1].advantages.empty());
  EXPECT_THAT(results[2].advantages, ElementsAre(4, 4));
  EXPECT_THAT(results[2].returns, ElementsAre(3, 3));
}

TEST(Advantages, OfOneValueWhitenToZero) {
  for (const std::string variance : {"population", "unbiased"}) {
    const AlgorithmConfig algorithm = Algorithm("reinforce_plus_plus", {"whitening_variance=" + variance});
    EXPECT_THAT(AdvantagesOfRewards({0.1, 0.1, 0.1}, algorithm), ElementsAre(0, 0, 0));
    EXPECT_THAT(AdvantagesOfRewards({2}, algorithm), ElementsAre(0));
    EXPECT_TRUE(EstimateAdvantages<double>({}, algorithm, 0).empty());
    EXPECT_EQ(EstimateAdvantages<double>({{.reward = 1, .tokens = 2, .excluded = true}}, algorithm, 0).size(), 1);
  }
}

TEST(AdvantageEstimators, SetTheDefaultsOfTheirMethod) {
  for (const auto& [name, normalization] : {std::pair("gae", "whiten"),
                                            {"reinforce", "whiten"},
                                            {"reinforce_plus_plus", "whiten"},
                                            {"reinforce_plus_plus_baseline", "whiten"},
                                            {"rloo", "none"},
                                            {"grpo", "none"},
                                            {"dr_grpo", "none"}}) {
    ASSERT_NE(FindEstimator(name), nullptr) << name;
    EXPECT_EQ(Algorithm(name, {}).advantage_normalization(), normalization) << name;
    EXPECT_EQ(FindEstimator(name)->needs_critic, std::string(name) == "gae");
  }
  EXPECT_EQ(Algorithm("dr_grpo", {}).loss_aggregation(), "sequence_sum_over_constant");
  EXPECT_EQ(FindEstimator("ppo"), nullptr);
}

TEST(AdvantageEstimators, OfAProgramAreLessTheKlPenaltiesToGoAndNormalised) {
  const auto config = LoadRunConfig("",
                                    {"algorithm.advantage_estimator=command", "algorithm.advantage_command.command=x",
                                     "algorithm.advantage_normalization=center"},
                                    "");
  ASSERT_TRUE(config.ok()) << config.status();
  const std::vector<double> kl = {0.5, 0.25, 1}, none = {0, 0, 0}, given = {1, 2, 3}, same = {-4, -4, -4};
  const std::vector<ScoredSequence<double>> batch = {{.reward = 7, .tokens = 3, .kl = kl, .given = given},
                                                     {.reward = 99, .tokens = 3, .kl = none, .given = same}};
  const auto estimated = EstimateAdvantages(batch, config->algorithm(), /*kl_coefficient=*/0.4);
  // Before they are centred: given less 0.4 * (1.75, 1.25, 1).
  EXPECT_THAT(estimated[0].returns, testing::Pointwise(testing::DoubleNear(1e-12), {0.3, 1.5, 2.6}));
  const double mean = (0.3 + 1.5 + 2.6 - 12) / 6;
  EXPECT_THAT(estimated[0].advantages,
              testing::Pointwise(testing::DoubleNear(1e-12), {0.3 - mean, 1.5 - mean, 2.6 - mean}));
  EXPECT_EQ(estimated[0].shaped_reward, 2);
  EXPECT_EQ(estimated[1].shaped_reward, -4);
  EXPECT_FALSE(estimated[0].clipped);
  EXPECT_TRUE(estimated[1].clipped) << "to what the program was told";
}

TEST(AdvantageEstimators, RefuseOptionsThatHaveNoEffectWithThem) {
  const auto refuses = [](const std::string& estimator, const std::string& leaf) {
    return !LoadRunConfig(
                "",
                {"rollout.n_samples_per_prompt=2", "algorithm.advantage_estimator=" + estimator, "algorithm." + leaf},
                "")
                .ok();
  };
  EXPECT_TRUE(refuses("gae", "gamma=1.5"));
  EXPECT_TRUE(refuses("grpo", "gamma=0.9"));
  EXPECT_TRUE(refuses("reinforce_plus_plus", "lambd=0.9"));
  EXPECT_TRUE(refuses("gae", "kl.kl_placement=sequence"));
  EXPECT_TRUE(refuses("reinforce_plus_plus", "reward_clip_placement=before_baseline"));
  EXPECT_TRUE(refuses("rloo", "group_baseline=leave_one_out"));
  EXPECT_TRUE(refuses("dr_grpo", "group_std_scale=batch"));
  EXPECT_TRUE(refuses("grpo", "group_std_eps=0"));
  EXPECT_TRUE(refuses("grpo", "whitening_variance=unbiased"));
  EXPECT_FALSE(refuses("grpo", "group_std_scale=batch"));
}

TEST(OptionNames, ThatAreUnknownAreAnsweredWithThoseThatAreAllowed) {
  EXPECT_EQ(MessageOf(ParseKlEstimator("k4").status()), "KL estimator \"k4\" is not known; allowed: k1, k2, k3");
  EXPECT_THAT(MessageOf(ParseLossAggregation("").status()), HasSubstr("token_mean"));
  EXPECT_THAT(MessageOf(ParseGroupFilter("std").status()), HasSubstr("none, not_equal, mean_inside"));
}

// The loss of one optimizer step: sum of weight times loss.
double Aggregate(const Ragged<double>& losses, LossAggregation aggregation) {
  std::vector<AggregatedSequence> sequences;
  for (const auto& sequence : losses) sequences.push_back({static_cast<int64_t>(sequence.size())});
  const std::vector<double> weights = LossWeights<double>(sequences, aggregation, 4);
  double sum = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    for (double loss : losses[i]) sum += weights[i] * loss;
  }
  return sum;
}

TEST(Aggregation, AgreesWithTheCasesWorkedOutByHand) {
  EXPECT_DOUBLE_EQ(Aggregate({{1, 2}, {3, 4, 5}, {7}}, LossAggregation::kTokenMean), 22.0 / 6);
  EXPECT_DOUBLE_EQ(Aggregate({{1, 3}, {2, 4}, {8}}, LossAggregation::kSequenceMean), 13.0 / 3);
  // One optimizer step accumulated from {1,2} and {3,4,5},{6,7}: not the mean of the micro-batches' means, 3.25.
  EXPECT_DOUBLE_EQ(Aggregate({{1, 2}, {3, 4, 5}, {6, 7}}, LossAggregation::kTokenMean), 4.0);
  EXPECT_DOUBLE_EQ(Aggregate({{1, 3}, {2, 4}, {8}}, LossAggregation::kSequenceSumOverConstant), 18.0 / 3 / 4);
}

TEST(Aggregation, SkipsSequencesThatAreEmptyOrExcluded) {
  EXPECT_DOUBLE_EQ(Aggregate({{1, 3}, {}, {8}}, LossAggregation::kSequenceMean), 5.0);
  const std::vector<AggregatedSequence> sequences = {{2, false}, {0, false}, {2, true}};
  EXPECT_THAT(LossWeights<double>(sequences, LossAggregation::kTokenMean), ElementsAre(0.5, 0, 0));
  EXPECT_THAT(LossWeights<double>(sequences, LossAggregation::kSequenceMean), ElementsAre(0.5, 0, 0));
  EXPECT_THAT(LossWeights<double>(sequences, LossAggregation::kSequenceSumOverConstant, 10), ElementsAre(0.1, 0, 0));
  const std::vector<AggregatedSequence> none = {{3, true}};
  EXPECT_THAT(LossWeights(none, LossAggregation::kTokenMean), ElementsAre(0));
}

TrainerConfig Schedule(double peak, const std::string& scheduler, double min_ratio) {
  TrainerConfig trainer;
  trainer.set_learning_rate(peak);
  trainer.set_lr_scheduler(scheduler);
  trainer.set_min_lr_ratio(min_ratio);
  return trainer;
}

TEST(LearningRate, FollowsTransformersSchedules) {
  ASSERT_EQ(Golden()["learning_rates"].size(), 8);
  for (const json& golden : Golden()["learning_rates"]) {
    SCOPED_TRACE(golden["name"].dump());
    const std::string scheduler = golden["scheduler"];
    TrainerConfig trainer = Schedule(golden["peak"], scheduler, golden["min_ratio"]);
    trainer.set_lr_warmup_steps(golden["warmup_steps"]);
    const auto schedule = LearningRateSchedule::Create(trainer, golden["total_steps"]);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    std::vector<double> rates;
    for (int64_t step = 1; step <= golden["total_steps"]; ++step) rates.push_back(schedule->At(step));
    ExpectGolden<double>(rates, golden["rates"].get<std::vector<double>>(), "learning rate, " + scheduler,
                         "transformers");
  }
}

TEST(LearningRate, WarmsUpForAShareOfTheStepsRoundedUp) {
  TrainerConfig trainer = Schedule(2, "constant", 0.1);
  trainer.set_lr_warmup_ratio(0.35);
  const auto schedule = LearningRateSchedule::Create(trainer, 10);
  ASSERT_TRUE(schedule.ok());
  EXPECT_DOUBLE_EQ(schedule->At(1), 0.5);
  EXPECT_DOUBLE_EQ(schedule->At(4), 2.0);
  EXPECT_DOUBLE_EQ(schedule->At(11), 2.0);
}

TEST(LearningRate, FallsAlongALineToItsFloor) {
  const auto schedule = LearningRateSchedule::Create(Schedule(1, "linear", 0.2), 4);
  ASSERT_TRUE(schedule.ok());
  EXPECT_DOUBLE_EQ(schedule->At(2), 0.6);
  EXPECT_DOUBLE_EQ(schedule->At(9), 0.2);
}

TEST(LearningRate, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(MessageOf(LearningRateSchedule::Create(Schedule(1, "step", 0), 1).status()),
              HasSubstr("\"step\" is not known; allowed: constant, linear, cosine"));
  EXPECT_FALSE(LearningRateSchedule::Create(Schedule(1, "cosine", 0), 0).ok());
}

}  // namespace
}  // namespace quartet

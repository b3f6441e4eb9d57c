// Against OpenRLHF's and transformers' own functions (tools/golden/rl_estimators.py), and cases worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/rl/advantages.h"
#include "core/rl/aggregation.h"
#include "core/rl/kl.h"
#include "core/rl/learning_rate.h"

namespace quartet {
namespace {

using Ragged = std::vector<std::vector<float>>;
using ::testing::HasSubstr;

const nlohmann::json& Golden() {
  static const nlohmann::json golden = [] {
    std::ifstream file("core/rl/testdata/estimators.json");
    return nlohmann::json::parse(file);
  }();
  return golden;
}

// The expected values are computed in fp32, ours inside in double.
void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 3e-6 * std::max(1.0f, std::abs(expected[i]))) << "token " << i;
  }
}

Ragged GoldenTokenRewards() {
  const Ragged kl = Golden()["kl"]["k1"];
  const std::vector<float> rewards = Golden()["rewards"];
  Ragged out;
  for (size_t i = 0; i < rewards.size(); ++i) {
    out.push_back(TokenRewards(rewards[i], -10, 10, kl[i], Golden()["kl_coefficient"], kl[i].size()));
  }
  return out;
}

TEST(Kl, AgreesWithOpenRlhfForEveryEstimatorAndClamps) {
  const Ragged log_probs = Golden()["log_probs"];
  const Ragged reference = Golden()["reference_log_probs"];
  for (const char* name : {"k1", "k2", "k3"}) {
    const Ragged expected = Golden()["kl"][name];
    for (size_t i = 0; i < log_probs.size(); ++i) {
      SCOPED_TRACE(std::string(name) + ", sequence " + std::to_string(i));
      ExpectNear(EstimateKl(log_probs[i], reference[i], *ParseKlEstimator(name)), expected[i]);
    }
  }
  EXPECT_EQ(EstimateKl(std::vector<float>{0}, std::vector<float>{20}, KlEstimator::kK1)[0], -10);
  EXPECT_EQ(EstimateKl(std::vector<float>{0}, std::vector<float>{20}, KlEstimator::kK3)[0], 10);
}

TEST(Kl, IsExactForSmallDifferences) {
  // exp(-d) - 1 + d cancels catastrophically in fp32: at d = 1e-4 it is 5e-9.
  const float d = 1e-4f;
  EXPECT_NEAR(EstimateKl(std::vector<float>{d}, std::vector<float>{0}, KlEstimator::kK3)[0], 0.5 * d * d, 1e-12);
}

TEST(Kl, RefusesAnUnknownEstimator) {
  EXPECT_THAT(std::string(ParseKlEstimator("k4").status().message()), HasSubstr("\"k4\""));
}

TEST(KlController, AgreesWithOpenRlhf) {
  const auto& golden = Golden()["kl_controller"];
  KlController controller(golden["initial"], golden["target"], golden["horizon"]);
  for (const auto& step : golden["steps"]) {
    controller.Update(step["kl"], step["sequences"]);
    EXPECT_NEAR(controller.coefficient(), step["coefficient"], 1e-12);
  }
}

TEST(KlController, StaysFixedWithoutATarget) {
  KlController controller(0.01, 0, 10000);
  controller.Update(100, 64);
  EXPECT_EQ(controller.coefficient(), 0.01);
}

TEST(Rewards, AgreeWithOpenRlhf) {
  const Ragged expected = Golden()["token_rewards"];
  const Ragged actual = GoldenTokenRewards();
  for (size_t i = 0; i < actual.size(); ++i) ExpectNear(actual[i], expected[i]);
}

TEST(Rewards, WithoutKlStandAtTheLastTokenAlone) {
  EXPECT_EQ(TokenRewards(1, -10, 10, {}, 0, 3), (std::vector<float>{0, 0, 1}));
  EXPECT_EQ(TokenRewards(50, -10, 10, {}, 0, 1), (std::vector<float>{10}));
}

TEST(Advantages, AgreeWithOpenRlhfForEveryGammaAndLambda) {
  const Ragged rewards = GoldenTokenRewards();
  const Ragged values = Golden()["values"];
  for (const auto& golden : Golden()["gae"]) {
    const Ragged advantages = golden["advantages"], returns = golden["returns"];
    for (size_t i = 0; i < rewards.size(); ++i) {
      const AdvantagesAndReturns actual = EstimateAdvantages(rewards[i], values[i], golden["gamma"], golden["lambda"]);
      ExpectNear(actual.advantages, advantages[i]);
      ExpectNear(actual.returns, returns[i]);
    }
  }
}

TEST(Advantages, WithLambdaOneAreRewardsToGoMinusValues) {
  const AdvantagesAndReturns actual =
      EstimateAdvantages(std::vector<float>{1, 2, 4}, std::vector<float>{0.5, 0.25, 3}, 1, 1);
  EXPECT_EQ(actual.returns, (std::vector<float>{7, 6, 4}));
  EXPECT_EQ(actual.advantages, (std::vector<float>{6.5, 5.75, 1}));
}

TEST(Advantages, AreNormalizedOverTheWholeBatchAsInOpenRlhf) {
  const Ragged rewards = GoldenTokenRewards();
  const Ragged values = Golden()["values"];
  for (const char* name : {"whiten", "center"}) {
    SCOPED_TRACE(name);
    const auto& golden = Golden()["normalized"][name];
    const Ragged expected = golden["advantages"], expected_returns = golden["returns"];
    Ragged advantages;
    for (size_t i = 0; i < rewards.size(); ++i) {
      AdvantagesAndReturns one = EstimateAdvantages(rewards[i], values[i], golden["gamma"], golden["lambda"]);
      ExpectNear(one.returns, expected_returns[i]);
      advantages.push_back(one.advantages);
    }
    NormalizeAdvantages(advantages, *ParseAdvantageNormalization(name));
    for (size_t i = 0; i < rewards.size(); ++i) ExpectNear(advantages[i], expected[i]);
  }
}

TEST(Advantages, OfOneValueWhitenToZero) {
  Ragged advantages = {{2, 2}, {2}};
  NormalizeAdvantages(advantages, AdvantageNormalization::kWhiten);
  EXPECT_EQ(advantages, (Ragged{{0, 0}, {0}}));
  Ragged none;
  NormalizeAdvantages(none, AdvantageNormalization::kWhiten);
}

// The loss of one optimizer step: sum of weight times loss.
double Aggregate(const Ragged& losses, LossAggregation aggregation) {
  std::vector<int64_t> lengths;
  for (const auto& sequence : losses) lengths.push_back(sequence.size());
  const std::vector<float> weights = LossWeights(lengths, aggregation);
  double sum = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    for (float loss : losses[i]) sum += static_cast<double>(weights[i]) * loss;
  }
  return sum;
}

TEST(Aggregation, AgreesWithTheCasesWorkedOutByHand) {
  EXPECT_NEAR(Aggregate({{1, 2}, {3, 4, 5}, {7}}, LossAggregation::kTokenMean), 22.0 / 6, 1e-6);
  EXPECT_NEAR(Aggregate({{1, 3}, {2, 4}, {8}}, LossAggregation::kSequenceMean), 13.0 / 3, 1e-6);
  // One optimizer step accumulated from {1,2} and {3,4,5},{6,7}: not the mean of the micro-batches' means, 3.25.
  EXPECT_NEAR(Aggregate({{1, 2}, {3, 4, 5}, {6, 7}}, LossAggregation::kTokenMean), 4.0, 1e-6);
}

TEST(Aggregation, SkipsSequencesWithoutActionTokens) {
  EXPECT_NEAR(Aggregate({{1, 3}, {}, {8}}, LossAggregation::kSequenceMean), 5.0, 1e-6);
  EXPECT_EQ(LossWeights(std::vector<int64_t>{0}, LossAggregation::kTokenMean), std::vector<float>{0});
}

TEST(LearningRate, FollowsTransformersCosineWithAFloor) {
  for (const auto& golden : Golden()["learning_rate"]) {
    const int64_t total = golden["total_steps"];
    const auto schedule =
        LearningRateSchedule::Create({.peak = golden["peak"],
                                      .scheduler = "cosine",
                                      .warmup_ratio = golden["warmup_steps"].get<double>() / static_cast<double>(total),
                                      .min_ratio = golden["min_ratio"],
                                      .total_steps = total});
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    const std::vector<double> rates = golden["rates"];
    for (int64_t step = 1; step <= total; ++step) {
      EXPECT_NEAR(schedule->At(step), rates[step - 1], 1e-9 * golden["peak"].get<double>()) << "step " << step;
    }
  }
}

TEST(LearningRate, StaysConstantAfterWarmUp) {
  const auto schedule = LearningRateSchedule::Create(
      {.peak = 2.0, .scheduler = "constant", .warmup_ratio = 0.4, .min_ratio = 0.1, .total_steps = 10});
  ASSERT_TRUE(schedule.ok());
  EXPECT_DOUBLE_EQ(schedule->At(1), 0.5);
  EXPECT_DOUBLE_EQ(schedule->At(4), 2.0);
  EXPECT_DOUBLE_EQ(schedule->At(10), 2.0);
  EXPECT_DOUBLE_EQ(schedule->At(11), 2.0);
}

TEST(LearningRate, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(
      std::string(
          LearningRateSchedule::Create({.peak = 1, .scheduler = "linear", .total_steps = 1}).status().message()),
      HasSubstr("\"linear\""));
  EXPECT_FALSE(LearningRateSchedule::Create({.peak = 1, .total_steps = 0}).ok());
  EXPECT_FALSE(LearningRateSchedule::Create({.peak = -1, .total_steps = 1}).ok());
  EXPECT_FALSE(LearningRateSchedule::Create({.peak = 1, .warmup_ratio = 1.5, .total_steps = 1}).ok());
}

}  // namespace
}  // namespace quartet

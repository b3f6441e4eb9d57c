#include "rollout/engine/sampling/sampler.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace quartet {
namespace {

using nlohmann::json;

// tools/golden/make_sampler_golden.py
json Golden() {
  std::ifstream file("rollout/engine/sampling/testdata/sampler.json");
  return json::parse(file);
}

SamplingRule RuleOf(const json& golden) {
  SamplingRule rule;
  rule.temperature = golden["temperature"];
  rule.top_k = golden.value("top_k", 0);
  rule.top_p = golden.value("top_p", 1.0f);
  rule.min_p = golden.value("min_p", 0.0f);
  rule.repetition_penalty = golden.value("repetition_penalty", 1.0f);
  rule.presence_penalty = golden.value("presence_penalty", 0.0f);
  rule.frequency_penalty = golden.value("frequency_penalty", 0.0f);
  if (golden.contains("logit_bias")) {
    for (const auto& [id, bias] : golden["logit_bias"].items()) {
      rule.logit_bias.emplace_back(std::stoi(id), bias.get<float>());
    }
  }
  return rule;
}

SamplingRule RuleOf(float temperature, int32_t top_k = 0, float top_p = 1) {
  SamplingRule rule;
  rule.temperature = temperature;
  rule.top_k = top_k;
  rule.top_p = top_p;
  return rule;
}

TEST(Sampler, TellsOfAnyTokenWhatItTellsOfTheOneThatItDraws) {
  Sampler sampler;
  for (const json& golden : Golden()) {
    const auto logits = golden["logits"].get<std::vector<float>>();
    SamplingRule rule = RuleOf(golden);
    rule.alternatives = 3;
    const auto drawn = sampler.Sample(logits, rule, {}, NoiseKey(1, 2, 3, 4));
    ASSERT_TRUE(drawn.ok()) << drawn.status();
    const auto told = sampler.Score(logits, rule, drawn->id, 3);
    ASSERT_TRUE(told.ok()) << told.status();
    EXPECT_EQ(told->id, drawn->id);
    EXPECT_EQ(told->log_prob, drawn->log_prob);
    EXPECT_EQ(told->alternatives, drawn->alternatives);
    // One that no rule lets be drawn: log_softmax by hand.
    const float temperature = rule.greedy() ? 1 : rule.temperature;
    double mass = 0;
    for (const float logit : logits) mass += std::exp(static_cast<double>(logit) / temperature);
    EXPECT_NEAR(sampler.Score(logits, rule, 1, 0)->log_prob, logits[1] / temperature - std::log(mass), 1e-5);
  }
  std::vector<float> bad = {1, NAN, 2};
  EXPECT_EQ(sampler.Score(bad, RuleOf(1), 0, 0).status().code(), absl::StatusCode::kInternal);
}

TEST(Sampler, DrawsOnlyWhatTransformersKeepsAndAgreesOnItsProbabilities) {
  Sampler sampler;
  int cases = 0;
  for (const json& golden : Golden()) {
    const auto logits = golden["logits"].get<std::vector<float>>();
    const json& kept = golden["sampled_log_probs"];
    for (int64_t position = 0; position < 300; ++position) {
      const auto token = sampler.Sample(logits, RuleOf(golden), {}, NoiseKey(1, cases, 0, position));
      ASSERT_TRUE(token.ok()) << token.status();
      ASSERT_TRUE(kept.contains(std::to_string(token->id))) << "case " << cases << ", token " << token->id;
      EXPECT_NEAR(token->log_prob, golden["log_probs"][token->id].get<float>(), 1e-5);
      EXPECT_NEAR(token->sampled_log_prob, kept[std::to_string(token->id)].get<float>(), 1e-5);
    }
    ++cases;
  }
  EXPECT_EQ(cases, 81);
}

// tools/golden/make_vllm_golden.py
TEST(Sampler, DrawsWhatVllmDrawsAndTellsItsLogProbabilitiesOrTheTrainers) {
  std::ifstream file("rollout/engine/sampling/testdata/vllm_sampler.json");
  Sampler sampler;
  int cases = 0;
  for (const json& golden : json::parse(file)) {
    SCOPED_TRACE(cases);
    const auto logits = golden["logits"].get<std::vector<float>>();
    const auto prompt = golden["prompt"].get<std::vector<int32_t>>();
    const auto answer = golden["answer"].get<std::vector<int32_t>>();
    const auto stops = golden["stop_tokens"].get<std::vector<int32_t>>();
    SamplingHistory history{.prompt = prompt, .answer = answer, .forbidden = {}};
    if (answer.size() < golden.value("min_tokens", size_t{0})) history.forbidden = stops;
    SamplingRule rule = RuleOf(golden);
    SamplingRule raw = rule;
    raw.raw_log_probs = true;
    double mass = 0;
    for (const float logit : logits) mass += std::exp(static_cast<double>(logit) / rule.temperature);
    const json& kept = golden["sampled_log_probs"];
    std::set<int32_t> drawn;
    for (int64_t position = 0; position < 400; ++position) {
      const uint64_t key = NoiseKey(1, cases, 0, position);
      const auto token = sampler.Sample(logits, rule, history, key);
      ASSERT_TRUE(token.ok()) << token.status();
      ASSERT_TRUE(kept.contains(std::to_string(token->id))) << "token " << token->id;
      EXPECT_NEAR(token->sampled_log_prob, kept[std::to_string(token->id)].get<float>(), 2e-5);
      EXPECT_NEAR(token->log_prob, logits[token->id] / rule.temperature - std::log(mass), 1e-5);
      const auto same = sampler.Sample(logits, raw, history, key);
      ASSERT_TRUE(same.ok()) << same.status();
      EXPECT_EQ(same->id, token->id);
      EXPECT_EQ(same->sampled_log_prob, token->sampled_log_prob);
      EXPECT_NEAR(same->log_prob, golden["raw_log_probs"][token->id].get<float>(), 1e-5);
      drawn.insert(token->id);
    }
    for (const auto& [id, log_prob] : kept.items()) {
      EXPECT_TRUE(log_prob.get<double>() < -3 || drawn.contains(std::stoi(id))) << "token " << id << " never came";
    }
    for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
      EXPECT_NEAR(sampler.Score(logits, raw, id, 0)->log_prob, golden["raw_log_probs"][id].get<float>(), 1e-5);
    }
    rule.temperature = 0;
    EXPECT_EQ(sampler.Sample(logits, rule, history, 1)->id, golden["greedy"]);
    ++cases;
  }
  EXPECT_EQ(cases, 60);
}

TEST(Sampler, TellsTheLikeliestTokensOfTheModelWhateverIsDrawn) {
  const std::vector<float> logits = {0, 3, 1, 3, -1, 2};
  SamplingRule rule;
  rule.temperature = 2;
  rule.alternatives = 4;
  rule.logit_bias = {{1, -50.0f}};
  Sampler sampler;
  const auto token = sampler.Sample(logits, rule, {}, 5);
  ASSERT_TRUE(token.ok());
  double mass = 0;
  for (const float logit : logits) mass += std::exp(logit / 2);
  ASSERT_EQ(token->alternatives.size(), 4u);
  const std::vector<int32_t> expected = {1, 3, 5, 2};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(token->alternatives[i].first, expected[i]);
    EXPECT_NEAR(token->alternatives[i].second, logits[expected[i]] / 2 - std::log(mass), 1e-6);
  }
  rule.alternatives = 20;
  EXPECT_EQ(sampler.Sample(logits, rule, {}, 5)->alternatives.size(), 6u);
}

TEST(Sampler, RefusesToDrawWhereEverythingIsForbidden) {
  const std::vector<float> logits = {0, 3};
  const std::vector<int32_t> all = {0, 1};
  Sampler sampler;
  EXPECT_EQ(sampler.Sample(logits, {}, {.prompt = {}, .answer = {}, .forbidden = all}, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Pearson's statistic of `draws` draws against the probabilities that transformers gives. Cells of fewer than 5
// expected draws are merged.
TEST(Sampler, DrawsEachTokenAsOftenAsItsProbabilitySays) {
  Sampler sampler;
  constexpr int kDraws = 20000;
  uint64_t prompt = 0;
  for (const json& golden : Golden()) {
    const auto logits = golden["logits"].get<std::vector<float>>();
    const json& kept = golden["sampled_log_probs"];
    if (kept.size() < 2 || logits.size() > 40) continue;
    std::map<int32_t, int> seen;
    ++prompt;
    for (int draw = 0; draw < kDraws; ++draw) {
      ++seen[sampler.Sample(logits, RuleOf(golden), {}, NoiseKey(5, prompt, draw % 100, draw / 100))->id];
    }
    double statistic = 0;
    int cells = 0;
    double rest_expected = 0;
    double rest_seen = 0;
    for (const auto& [id, log_prob] : kept.items()) {
      const double expected = kDraws * std::exp(log_prob.get<double>());
      const double count = seen[std::stoi(id)];
      if (expected < 5) {
        rest_expected += expected;
        rest_seen += count;
        continue;
      }
      statistic += (count - expected) * (count - expected) / expected;
      ++cells;
    }
    if (rest_expected >= 5) {
      statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
      ++cells;
    }
    if (cells < 2) continue;
    // Wilson and Hilferty: the cube root of chi-square / freedom is nearly normal. 4.5 standard deviations.
    const double freedom = cells - 1;
    const double spread = 2 / (9 * freedom);
    EXPECT_LT((std::cbrt(statistic / freedom) - (1 - spread)) / std::sqrt(spread), 4.5)
        << "chi-square " << statistic << " with " << freedom << " degrees of freedom";
  }
  EXPECT_GT(prompt, 20u);
}

TEST(Sampler, DrawsTheSameTokenForTheSameKeyWhateverWasDrawnBefore) {
  std::vector<float> logits(1000);
  std::mt19937 random(1);
  for (float& x : logits) x = std::normal_distribution<float>()(random);
  Sampler fresh;
  Sampler used;
  std::set<int32_t> drawn;
  for (int64_t position = 0; position < 50; ++position) {
    const uint64_t key = NoiseKey(9, 3, 1, position);
    ASSERT_TRUE(used.Sample(std::vector<float>(37, 0.5f), RuleOf(1, 5, 0.5), {}, key).ok());
    const int32_t id = used.Sample(logits, {}, {}, key)->id;
    EXPECT_EQ(id, fresh.Sample(logits, {}, {}, key)->id);
    drawn.insert(id);
  }
  EXPECT_GT(drawn.size(), 30u);
}

TEST(Sampler, NoiseDiffersInEveryPartOfItsKey) {
  const std::set<uint64_t> keys = {NoiseKey(0, 0, 0, 0), NoiseKey(1, 0, 0, 0), NoiseKey(0, 1, 0, 0),
                                   NoiseKey(0, 0, 1, 0), NoiseKey(0, 0, 0, 1), NoiseKey(1, 1, 0, 0),
                                   NoiseKey(0, 1, 1, 0), NoiseKey(0, 0, 1, 1)};
  EXPECT_EQ(keys.size(), 8u);
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEqualsAndReportsItsProbabilityAtTemperatureOne) {
  std::vector<float> logits(100, -1.0f);
  logits[17] = logits[63] = 2.5f;
  Sampler sampler;
  for (const float temperature : {0.0f, 9e-6f}) {
    const auto token = sampler.Sample(logits, RuleOf(temperature, 3, 0.5), {}, 1);
    EXPECT_EQ(token->id, 17);
    EXPECT_NEAR(token->log_prob, 2.5 - std::log(2 * std::exp(2.5) + 98 * std::exp(-1.0)), 1e-6);
    EXPECT_EQ(token->sampled_log_prob, 0);
  }
}

TEST(Sampler, TopPKeepsTheTokenThatReachesTheMass) {
  // Probabilities 0.5, 0.3, 0.2.
  const std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  Sampler sampler;
  std::set<int32_t> drawn;
  for (int64_t i = 0; i < 500; ++i)
    drawn.insert(sampler.Sample(logits, RuleOf(1, 0, 0.7f), {}, NoiseKey(1, 1, 1, i))->id);
  EXPECT_EQ(drawn, (std::set<int32_t>{1, 2}));
}

TEST(Sampler, NeverDrawsATokenThatIsMaskedOut) {
  std::vector<float> logits(64, -std::numeric_limits<float>::infinity());
  logits[3] = 0;
  logits[40] = 1;
  Sampler sampler;
  for (int64_t i = 0; i < 200; ++i) {
    const auto token = sampler.Sample(logits, {}, {}, NoiseKey(2, 2, 2, i));
    ASSERT_TRUE(token->id == 3 || token->id == 40);
    EXPECT_NEAR(token->log_prob, (token->id == 40 ? 1 : 0) - std::log(1 + std::exp(1.0)), 1e-6);
  }
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  Sampler sampler;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity}) {
    for (const size_t place : {0u, 20u, 49u}) {
      std::vector<float> logits(50, 1.0f);
      logits[place] = bad;
      EXPECT_EQ(sampler.Sample(logits, {}, {}, 1).status().code(), absl::StatusCode::kInternal)
          << bad << " at " << place;
    }
  }
  EXPECT_EQ(sampler.Sample(std::vector<float>(50, -infinity), {}, {}, 1).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace quartet

// Agents over real processes: a program plays with a policy, and the policy learns from it.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::IsEmpty;

constexpr char kAgentQuickstart[] = "quickstart/agent";

TEST(Agent, LearnsAGameOfSeveralTurnsFromChanceToSolved) {
  ProcessHarness harness;
  const std::string run_dir = harness.Path("run");
  const auto outcome = harness.Run(kAgentQuickstart, {"--run_dir=" + run_dir, "--seed=1"}, absl::Minutes(10));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::vector<nlohmann::json> metrics = ReadRecords(run_dir + "/metrics.jsonl");
  ASSERT_GE(metrics.size(), 6u);
  EXPECT_LT(metrics.front().at("reward/mean").get<double>(), 0.5) << outcome.output;
  EXPECT_GT(metrics.back().at("reward/mean").get<double>(), 0.85) << outcome.output;
  EXPECT_LT(metrics.front().at("eval/heldout/pass@1").get<double>(), 0.5);
  EXPECT_GT(metrics.back().at("eval/heldout/pass@1").get<double>(), 0.8);
  for (const nlohmann::json& step : metrics) {
    EXPECT_LT(step.at("rollout/log_prob_diff_max").get<double>(), 1e-4);
    EXPECT_EQ(step.at("agent/branches").get<double>(), 0);  // each game is one sequence
    EXPECT_EQ(step.at("agent/refused").get<double>(), 0);
  }
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
}

}  // namespace
}  // namespace quartet

// A whole run whose four services share one GPU, beside the same run on CPUs.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/config/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

struct Finished {
  std::string output;
  int exit_code = 0;
  std::vector<nlohmann::json> metrics;
};

Finished RunOn(const std::string& device, const std::vector<std::string>& overrides) {
  ProcessHarness harness;
  std::vector<std::string> all = overrides;
  for (const std::string& service : kServiceNames)
    all.push_back(absl::StrCat("services.", service, ".device=", device));
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1, all);
  std::vector<std::string> arguments = run.arguments;
  arguments.push_back("--launch");
  const auto outcome = harness.Run(kOrchestrator, arguments, absl::Seconds(180));
  EXPECT_TRUE(outcome.ended);
  return {outcome.output, outcome.exit_code, ReadRecords(run.run_dir + "/metrics.jsonl")};
}

TEST(GpuRun, LearnsWhatARunOnCpusLearns) {
  const Finished found = RunOn("cuda", {});
  if (found.output.find("; this host has 0") != std::string::npos) GTEST_SKIP() << found.output;
  ASSERT_EQ(found.exit_code, 0) << found.output;
  const Finished expected = RunOn("cpu", {});
  ASSERT_EQ(expected.exit_code, 0) << expected.output;
  ASSERT_EQ(found.metrics.size(), 3u);
  ASSERT_EQ(expected.metrics.size(), 3u);
  for (const char* name : {"reward/mean", "response_length/mean", "policy/grad_norm", "critic/loss"}) {
    EXPECT_NEAR(found.metrics[0].at(name).get<double>(), expected.metrics[0].at(name).get<double>(), 1e-3) << name;
  }
  for (const auto& record : found.metrics) EXPECT_LT(record.at("rollout/log_prob_diff_max").get<double>(), 1e-4);
}

TEST(GpuRun, TrainsInBf16WithItsStateInHostMemory) {
  const Finished found = RunOn("cuda", {"rollout.dtype=bf16", "actor.dtype=bf16", "critic.dtype=bf16",
                                        "reference.dtype=bf16", "actor.adam_offload=true", "actor.offload_param=true",
                                        "actor.activation_offload=true", "actor.gradient_checkpointing=true"});
  if (found.output.find("; this host has 0") != std::string::npos) GTEST_SKIP() << found.output;
  ASSERT_EQ(found.exit_code, 0) << found.output;
  ASSERT_EQ(found.metrics.size(), 3u);
  for (const auto& record : found.metrics) {
    EXPECT_LT(record.at("rollout/log_prob_diff_mean").get<double>(), 0.02);
    EXPECT_GT(record.at("memory/policy_trainer/host/optimizer").get<double>(), 0);
    EXPECT_GT(record.at("memory/policy_trainer/host/activations").get<double>(), 0);
  }
}

}  // namespace
}  // namespace quartet

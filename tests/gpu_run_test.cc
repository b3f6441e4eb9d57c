// A whole run whose four services share one GPU, beside the same run on CPUs. Where QUARTET_TEST_DEVICE is "cpu" ranks
// that are started one by one are on CPUs, too, which shows what of that test needs no GPU.

#include <stdlib.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/config/run_config.h"
#include "core/service/ranks/addresses/port_reservation.h"
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

// As torchrun would start rank `rank` of two; to NCCL each is a host of its own, so that they have one GPU together.
std::map<std::string, std::string> RankEnvironment(const std::string& service, int rank) {
  return {{"RANK", absl::StrCat(rank)},
          {"WORLD_SIZE", "2"},
          {"LOCAL_RANK", "0"},
          {"LOCAL_WORLD_SIZE", "1"},
          {"NCCL_HOSTID", absl::StrCat(service, rank)}};
}

TEST(GpuRun, OfTwoRanksEachLearnsWhatOneOfOneEachDoes) {
  const char* const set = getenv("QUARTET_TEST_DEVICE");
  const std::string device = set == nullptr ? "cuda" : set;
  ProcessHarness harness;
  std::vector<std::string> overrides = {"actor.zero_stage=3", "critic.zero_stage=2", "reference.zero_stage=3",
                                        "rollout.tensor_parallel_size=2"};
  std::vector<PortReservation> ports;
  for (const std::string& service : kServiceNames) {
    ports.push_back(PortReservation::Make({.host = "127.0.0.1", .port = 0}).value());
    overrides.push_back(absl::StrCat("services.", service, ".device=", device));
    overrides.push_back(absl::StrCat("services.", service, ".listen=", ports.back().address().ToString()));
  }
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 2, overrides);
  ports.clear();  // for the services
  std::vector<pid_t> ranks;
  for (const std::string& service : kServiceNames) {
    for (const int rank : {0, 1}) {
      ranks.push_back(
          harness.Start(absl::StrCat(service, "/", service), run.arguments, RankEnvironment(service, rank)));
    }
  }
  std::string outputs;
  bool serves = true;
  for (const pid_t rank : ranks) {
    serves = harness.WaitForOutput(rank, "serving on", absl::Minutes(2)) && serves;
    outputs += harness.Output(rank);
  }
  if (device == "cuda" && outputs.find(" CUDA devices, and each rank needs one") != std::string::npos)
    GTEST_SKIP() << outputs;
  ASSERT_TRUE(serves) << outputs;
  const auto outcome = harness.Run(kOrchestrator, run.arguments, absl::Minutes(4));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::vector<nlohmann::json> found = ReadRecords(run.run_dir + "/metrics.jsonl");
  const Finished expected = RunOn("cpu", {});
  ASSERT_EQ(expected.exit_code, 0) << expected.output;
  ASSERT_EQ(found.size(), 3u);
  for (const char* name : {"reward/mean", "response_length/mean", "policy/grad_norm", "critic/loss"}) {
    EXPECT_NEAR(found[0].at(name).get<double>(), expected.metrics[0].at(name).get<double>(), 1e-3) << name;
  }
  for (const auto& record : found) EXPECT_LT(record.at("rollout/log_prob_diff_max").get<double>(), 1e-4);
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

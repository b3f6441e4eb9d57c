// A whole run over real processes: what it writes, where it listens, how it ends.

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kOrchestrator[] = "orchestrator/orchestrator";

std::vector<nlohmann::json> ReadLines(const std::string& path) {
  std::vector<nlohmann::json> records;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) records.push_back(nlohmann::json::parse(line));
  return records;
}

std::vector<std::string> With(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Starts a run that would go on for ever and waits for its first step.
pid_t StartEndlessRun(ProcessHarness& harness, TinyRun* run) {
  *run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 2, {"train.max_steps=100000"});
  const pid_t pid = harness.Start(kOrchestrator, With(run->arguments, {"--launch"}));
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (absl::Now() < deadline && !harness.Wait(pid, absl::Milliseconds(100)).ended &&
         ReadLines(run->run_dir + "/metrics.jsonl").empty()) {
  }
  EXPECT_FALSE(ReadLines(run->run_dir + "/metrics.jsonl").empty()) << harness.Output(pid);
  return pid;
}

TEST(Run, WritesItsFolder) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 2, {"train.save_steps=2"});
  const auto outcome = harness.Run(kOrchestrator, With(run.arguments, {"--launch"}), absl::Seconds(120));
  ASSERT_TRUE(outcome.ended);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;

  const auto metrics = ReadLines(run.run_dir + "/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 3u);
  for (const auto& record : metrics) {
    for (const char* name : {"step",
                             "policy_version",
                             "reward/mean",
                             "reward/std",
                             "kl/mean",
                             "response_length/mean",
                             "rollout/log_prob_diff_mean",
                             "rollout/log_prob_diff_p99",
                             "rollout/log_prob_diff_max",
                             "policy/loss",
                             "policy/clip_fraction",
                             "policy/entropy",
                             "policy/grad_norm",
                             "critic/loss",
                             "critic/explained_variance",
                             "time/generate",
                             "time/score",
                             "time/values",
                             "time/policy_update",
                             "time/critic_update",
                             "time/weight_sync",
                             "time/step",
                             "tokens/generated"}) {
      EXPECT_TRUE(record.contains(name)) << name;
    }
    EXPECT_TRUE(record.contains("memory/policy_trainer/gathered"));
    // One forward for training and rollout: in fp32 they differ by rounding alone.
    EXPECT_LT(record.at("rollout/log_prob_diff_max").get<double>(), 1e-4);
  }
  // The policy is the reference before its first update.
  EXPECT_NEAR(metrics[0].at("kl/mean").get<double>(), 0, 1e-5);
  EXPECT_NE(metrics[2].at("kl/mean").get<double>(), 0);

  EXPECT_FALSE(ReadLines(run.run_dir + "/samples.jsonl").empty());
  EXPECT_TRUE(std::filesystem::exists(run.run_dir + "/run.textproto"));
  EXPECT_TRUE(std::filesystem::exists(run.run_dir + "/checkpoints/step_2/policy/model.safetensors"));
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
    EXPECT_TRUE(std::filesystem::exists(absl::StrCat(run.run_dir, "/checkpoints/latest/policy/", file))) << file;
  }
  for (const char* service : {"rollout", "policy_trainer", "critic_trainer", "scorer"}) {
    EXPECT_TRUE(std::filesystem::exists(absl::StrCat(run.run_dir, "/logs/", service, ".log"))) << service;
  }
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());

  // The resolved configuration starts the same run again.
  const auto again =
      harness.Run(kOrchestrator,
                  {"--launch", "--config=" + run.run_dir + "/run.textproto", "--set=run_dir=" + harness.Path("again")},
                  absl::Seconds(120));
  ASSERT_EQ(again.exit_code, 0) << again.output;
  // Two ranks, synchronous, fp32: the first step does not depend on when things happened.
  EXPECT_EQ(ReadLines(harness.Path("again") + "/metrics.jsonl")[0].at("reward/mean"), metrics[0].at("reward/mean"));
}

TEST(Run, ListensOnLoopbackAlone) {
  ProcessHarness harness;
  TinyRun run;
  StartEndlessRun(harness, &run);
  const std::vector<ListeningSocket> sockets = harness.ListeningSockets();
  // At least one gRPC server a rank.
  EXPECT_GE(sockets.size(), 8u);
  for (const ListeningSocket& socket : sockets) {
    EXPECT_TRUE(socket.address == "127.0.0.1" || socket.address == "::1" || socket.address == "::ffff:127.0.0.1")
        << ProcessHarness::CommandLine(socket.pid) << " listens on " << socket.address << ":" << socket.port;
  }
}

TEST(Run, EndsAtCtrlCAndLeavesNothing) {
  ProcessHarness harness;
  TinyRun run;
  const pid_t pid = StartEndlessRun(harness, &run);
  kill(pid, SIGINT);
  const auto outcome = harness.Wait(pid, absl::Seconds(10));
  EXPECT_TRUE(outcome.ended) << outcome.output;
  EXPECT_EQ(outcome.exit_code, 130) << outcome.output;
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
}

TEST(Run, LeavesNothingWhenTheOrchestratorIsKilled) {
  ProcessHarness harness;
  TinyRun run;
  const pid_t pid = StartEndlessRun(harness, &run);
  kill(pid, SIGKILL);
  EXPECT_TRUE(harness.Wait(pid, absl::Seconds(5)).ended);
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
}

// The orchestrator against services that somebody else started, each by itself.
TEST(Run, UsesServicesThatRunAlready) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1, {"rollout.zero_stage=3"});
  std::vector<std::string> arguments = run.arguments;
  std::vector<pid_t> services;
  for (const std::string service : {"rollout", "policy_trainer", "critic_trainer", "scorer"}) {
    const std::string address_file = harness.Path(service + ".address");
    services.push_back(harness.Start(absl::StrCat(service, "/", service),
                                     With(run.arguments, {"--ranks=2", "--address_file=" + address_file})));
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (!std::filesystem::exists(address_file) && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(50));
    std::string address;
    std::ifstream(address_file) >> address;
    ASSERT_FALSE(address.empty()) << harness.Output(services.back());
    arguments.push_back(absl::StrCat("--set=services.", service, ".listen=", address));
  }
  const auto outcome = harness.Run(kOrchestrator, arguments, absl::Seconds(120));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(ReadLines(run.run_dir + "/metrics.jsonl").size(), 3u);
  // They outlive the run, and end cleanly when told to.
  for (pid_t service : services) {
    EXPECT_EQ(kill(service, SIGTERM), 0);
    const auto ended = harness.Wait(service, absl::Seconds(10));
    EXPECT_TRUE(ended.ended);
    EXPECT_EQ(ended.exit_code, 0) << ended.output;
  }
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
}

}  // namespace
}  // namespace quartet

// Services that are replaced while their run goes on.
#include <signal.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/config/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Strings = std::vector<std::string>;

constexpr char kUpgrade[] = "orchestrator/upgrade";
constexpr absl::Duration kLong = absl::Seconds(240);

Strings With(Strings arguments, const Strings& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

class UpgradeTest : public testing::Test {
 protected:
  UpgradeTest() : model_(WriteTinyModel(harness_, "model")) {}

  std::string Records(const std::string& run_dir) const { return run_dir + "/metrics.jsonl"; }

  ProcessHarness::Outcome Upgrade(const std::string& service, const Strings& flags) {
    return harness_.Run(kUpgrade, With({"--service=" + service, "--run_dir=" + run_.run_dir}, flags), kLong);
  }

  // A run with a launcher that would go on for ever, once it has made a step.
  pid_t StartEndlessRun(const Strings& fields) {
    run_ = WriteTinyRun(harness_, model_, 1, With(fields, {"train.max_steps=100000", "train.save_optimizer=true"}));
    const pid_t pid = harness_.Start(kOrchestrator, With(run_.arguments, {"--launch"}));
    EXPECT_FALSE(WaitForRecords(harness_, pid, Records(run_.run_dir), 1, kLong).empty()) << harness_.Output(pid);
    return pid;
  }
  // It makes further steps, and none is lost or made twice.
  void ExpectGoesOn(pid_t pid) {
    const size_t made = ReadRecords(Records(run_.run_dir)).size();
    const auto records = WaitForRecords(harness_, pid, Records(run_.run_dir), made + 2, kLong);
    EXPECT_GE(records.size(), made + 2) << harness_.Output(pid);
    for (size_t step = 0; step < records.size(); ++step) EXPECT_EQ(records[step].at("step"), step);
  }

  // A bundle whose `service` is a script, beside the real one as $real.
  std::string Bundle(const std::string& name, const std::string& service, const std::string& script) {
    const std::string folder = harness_.Path(name);
    std::filesystem::create_directories(folder + "/" + service);
    std::filesystem::create_symlink(std::filesystem::absolute(service + "/rank"), folder + "/" + service + "/rank");
    const std::string path =
        harness_.Write(absl::StrCat(name, "/", service, "/", service),
                       absl::StrCat("#!/bin/sh\nreal=", std::filesystem::absolute(service).string(), "/", service, "\n",
                                    script, "\n"));
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return "--bundle=" + folder;
  }

  ProcessHarness harness_;
  const std::string model_;
  TinyRun run_;
};

TEST_F(UpgradeTest, ReplacesEachServiceAndTheRunIsBitForBitTheSame) {
  // In each step the rollout's batch is one: what it computes does not depend on when answers are asked for.
  constexpr size_t kSteps = 100;
  run_ = WriteTinyRun(harness_, model_, 2, {absl::StrCat("train.max_steps=", kSteps), "train.save_optimizer=true"});
  const std::string undisturbed = harness_.Path("undisturbed");
  const auto expected =
      harness_.Run(kOrchestrator, With(run_.arguments, {"--launch", "--set=run_dir=" + undisturbed}), kLong);
  ASSERT_EQ(expected.exit_code, 0) << expected.output;

  const pid_t run = harness_.Start(kOrchestrator, With(run_.arguments, {"--launch"}));
  ASSERT_FALSE(WaitForRecords(harness_, run, Records(run_.run_dir), 1, kLong).empty()) << harness_.Output(run);
  const auto upgrade = Upgrade("all", {"--bundle=."});
  EXPECT_EQ(upgrade.exit_code, 0) << upgrade.output << harness_.Output(run);
  for (const std::string& service : kServiceNames) {
    EXPECT_THAT(upgrade.output, ContainsRegex(absl::StrCat("the ", service, " is replaced, in [0-9.]+ s: ")));
  }
  EXPECT_THAT(upgrade.output, AllOf(HasSubstr("rewards differ by 0 on average"),
                                    HasSubstr("greedy answers' log-probabilities differ by 0 on average"),
                                    HasSubstr("values differ by 0 on average"), HasSubstr("the same weights, ")));
  const auto outcome = harness_.Wait(run, kLong);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(harness_.Survivors(absl::Seconds(5)), IsEmpty());

  const auto records = ReadRecords(Records(run_.run_dir)), same = ReadRecords(Records(undisturbed));
  ASSERT_EQ(records.size(), kSteps);
  ASSERT_EQ(same.size(), kSteps);
  for (size_t step = 0; step < kSteps; ++step) {
    EXPECT_EQ(records[step].at("step"), step);
    for (const char* name : {"reward/mean", "kl/mean", "policy/loss", "critic/loss", "policy_version"}) {
      EXPECT_EQ(records[step].at(name), same[step].at(name)) << name << " of step " << step;
    }
  }
  for (const char* file :
       {"/checkpoints/latest/policy/model.safetensors", "/checkpoints/latest/critic/model.safetensors"}) {
    EXPECT_TRUE(Bytes(run_.run_dir + file) == Bytes(undisturbed + file)) << file;
    EXPECT_FALSE(Bytes(run_.run_dir + file).empty()) << file;
  }
}

TEST_F(UpgradeTest, BringsTheOldOneBackWhereTheNewOneDoesNotDo) {
  const std::string reward = harness_.Write("reward.py", R"py(
import json, os, sys
for line in sys.stdin:
    item = json.loads(line)
    print(json.dumps({"id": item["id"], "reward": len(item["response"]) + float(os.environ.get("SHIFT", "0"))}), flush=True)
)py");
  const pid_t run = StartEndlessRun({"reward.source.0.command=python3 " + reward, "reward.source.0.rule="});
  const auto refused = [&](const std::string& bundle) {
    const auto outcome = Upgrade("scorer", {bundle});
    EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
    ExpectGoesOn(run);
    return outcome.output;
  };
  // One that answers otherwise, one that ends, one that does not start.
  EXPECT_THAT(refused(Bundle("shifted", "scorer", "SHIFT=1 exec $real \"$@\"")),
              AllOf(HasSubstr("it answers otherwise than the one before it: rewards differ by "),
                    HasSubstr("train.max_upgrade_diff_mean allows 0.02"), HasSubstr("the scorer is as it was before")));
  EXPECT_THAT(
      refused(Bundle("ending", "scorer", "[ \"$1\" != --version ] || exec $real --version; echo out of order; exit 3")),
      AllOf(HasSubstr("scorer ended by itself: exit code 3"), HasSubstr("out of order"),
            HasSubstr("the scorer is as it was before")));
  const auto trainer = Upgrade(
      "policy_trainer", {Bundle("dying", "policy_trainer", "[ \"$1\" != --version ] || exec $real --version; exit 1")});
  EXPECT_EQ(trainer.exit_code, 1);
  EXPECT_THAT(trainer.output, HasSubstr("the policy_trainer is as it was before"));
  ExpectGoesOn(run);
  // One that serves, and dies of the first prompt.
  const auto rollout =
      Upgrade("rollout", {Bundle("fragile", "rollout", "QUARTET_FAIL_POINTS=rollout.generate=kill exec $real \"$@\"")});
  EXPECT_EQ(rollout.exit_code, 1) << rollout.output;
  EXPECT_THAT(rollout.output, HasSubstr("the rollout is as it was before"));
  ExpectGoesOn(run);
  // What can be seen before anything is stopped.
  EXPECT_THAT(refused(Bundle("later", "scorer", "echo quartet 9.0.0, of the future, wire protocols 98 to 99")),
              AllOf(HasSubstr("speaks protocol versions 98 to 99"), testing::Not(HasSubstr("is stopped"))));
  // What can be seen before the run is asked.
  const std::string alone = Bundle("scorer_alone", "scorer", "exit 3");
  for (const auto& [service, bundle, why] : std::vector<std::array<std::string, 3>>{
           {"scorer", "--bundle=/nowhere", "there is no /nowhere/scorer/scorer"},
           {"scorer", Bundle("other", "scorer", "echo hello"), "is no program of Quartet's that runs on this host"},
           {"rollout", alone, "/scorer_alone/rollout/rollout"},
           {"all", alone, "/scorer_alone/rollout/rollout"}}) {
    const auto at_once = Upgrade(service, {bundle});
    EXPECT_EQ(at_once.exit_code, 2) << at_once.output;
    EXPECT_THAT(at_once.output, AllOf(HasSubstr(why), testing::Not(HasSubstr("waiting for the end of a step"))));
  }
  const auto unknown = Upgrade("judge", {"--bundle=."});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("--service is \"judge\"; allowed: "));

  kill(run, SIGINT);
  EXPECT_EQ(harness_.Wait(run, kLong).exit_code, 130);
  EXPECT_THAT(harness_.Survivors(absl::Seconds(5)), IsEmpty());
  EXPECT_THAT(Upgrade("scorer", {"--bundle=."}).output, HasSubstr("no run goes on in " + run_.run_dir));
}

TEST_F(UpgradeTest, HoldsARunWhileAServiceIsReplacedByHand) {
  run_ = WriteTinyRun(harness_, model_, 1, {"train.max_steps=100000", "train.save_optimizer=true"});
  ServicesByHand by_hand = StartServices(harness_, run_.arguments);
  const pid_t run = harness_.Start(kOrchestrator, With(run_.arguments, by_hand.arguments()));
  ASSERT_FALSE(WaitForRecords(harness_, run, Records(run_.run_dir), 1, kLong).empty()) << harness_.Output(run);
  EXPECT_THAT(Upgrade("scorer", {"--bundle=."}).output, HasSubstr("services were started by hand"));
  EXPECT_THAT(Upgrade("scorer", {"--release"}).output, HasSubstr("the run is not held"));

  const auto held = Upgrade("critic_trainer", {"--hold"});
  ASSERT_EQ(held.exit_code, 0) << held.output;
  const std::string load = "--set=critic.load_checkpoint=";
  const size_t at = held.output.find(load);
  ASSERT_NE(at, std::string::npos) << held.output;
  const std::string argument = held.output.substr(at, held.output.find(';', at) - at);
  const size_t steps = ReadRecords(Records(run_.run_dir)).size();
  EXPECT_THAT(held.output, HasSubstr(absl::StrCat("the run is held after step ", steps, ": ")));
  EXPECT_THAT(Upgrade("scorer", {"--hold"}).output, HasSubstr("the run is held for the critic_trainer"));

  const ProcessHarness::Service old = by_hand.services["critic_trainer"];
  kill(old.pid, SIGTERM);
  EXPECT_TRUE(harness_.Wait(old.pid, kLong).ended);
  EXPECT_THAT(Upgrade("critic_trainer", {"--release"}).output,
              AllOf(HasSubstr("critic_trainer at " + old.address), HasSubstr("The run is still held")));
  const std::string listen = "--set=services.critic_trainer.listen=" + old.address;
  // Without its state it is not the run's critic.
  const auto fresh = harness_.StartService("critic_trainer", With(run_.arguments, {listen}));
  ASSERT_EQ(fresh.address, old.address) << harness_.Output(fresh.pid);
  EXPECT_THAT(Upgrade("critic_trainer", {"--release"}).output, HasSubstr("critic.load_checkpoint is "));
  kill(fresh.pid, SIGTERM);
  EXPECT_TRUE(harness_.Wait(fresh.pid, kLong).ended);
  ASSERT_EQ(harness_.StartService("critic_trainer", With(run_.arguments, {listen, argument})).address, old.address);
  EXPECT_EQ(ReadRecords(Records(run_.run_dir)).size(), steps) << "it was held";
  const auto released = Upgrade("critic_trainer", {"--release"});
  EXPECT_EQ(released.exit_code, 0) << released.output;
  EXPECT_THAT(released.output, ContainsRegex("the run goes on, after [0-9.]+ s: critic_trainer "));
  ExpectGoesOn(run);

  // Who has changed their mind lets it go on as it is.
  ASSERT_EQ(Upgrade("policy_trainer", {"--hold"}).exit_code, 0);
  EXPECT_THAT(Upgrade("policy_trainer", {"--release"}).output, HasSubstr("policy_trainer is the one that it was"));
  ExpectGoesOn(run);
}

}  // namespace
}  // namespace quartet

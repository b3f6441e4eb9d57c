// Runs on a cluster of three hosts that Slurm's own daemons manage. The hosts are network namespaces, which root alone
// can make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/config/services.h"
#include "tests/process_harness.h"
#include "tests/simulated_hosts.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

using Strings = std::vector<std::string>;

constexpr absl::Duration kLong = absl::Minutes(3);

class SlurmTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    missing_ = SimulatedHosts::Missing({"slurmctld", "slurmd", "munged", "sbatch"});
    if (!missing_.empty()) return;
    hosts_ = std::make_unique<SimulatedHosts>(3);
    std::vector<pid_t> nodes;
    for (int host = 1; host <= 3; ++host) nodes.push_back(StartNode(host));
    for (const pid_t node : nodes) {
      ASSERT_TRUE(hosts_->harness().WaitForOutput(node, "slurmd started", kLong)) << hosts_->harness().Output(node);
    }
    WaitForIdleNodes();
  }
  static void TearDownTestSuite() { hosts_ = nullptr; }

  void SetUp() override {
    if (!missing_.empty()) {
      GTEST_SKIP() << "needs " << missing_ << " (packages slurmctld slurmd slurm-client munge iproute2)";
    }
    model_ = WriteTinyModel(harness_, "model");
  }
  void TearDown() override {
    if (!missing_.empty()) return;
    On(1, {"scancel", "--user=root"});
    WaitForIdleNodes();
  }

  static pid_t StartNode(int host) {
    return hosts_->Start(hosts_->harness(), host, "tests/cluster/slurm.sh",
                         {hosts_->folder(), absl::StrCat(host), "3"});
  }

  static std::map<std::string, std::string> Environment() { return {{"SLURM_CONF", hosts_->folder() + "/slurm.conf"}}; }
  // What a command prints on a host.
  static std::string On(int host, const Strings& command) { return hosts_->Output(host, command, Environment()); }

  static void WaitForIdleNodes() {
    const absl::Time deadline = absl::Now() + kLong;
    std::string states;
    while (absl::Now() < deadline) {
      states = On(1, {"sinfo", "--noheader", "--partition=all", "--format=%T %D"});
      if (states == "idle 3\n") return;
      absl::SleepFor(absl::Milliseconds(200));
    }
    FAIL() << "the nodes are not idle: " << states;
  }

  // Starts `quartet launch --engine=slurm`: two nodes for the services, of which the policy trainer is on both, and one
  // for the orchestrator.
  pid_t Launch(const Strings& fields, const Strings& flags = {},
               const Strings& orchestrator = {"--orchestrator_sbatch=--mem=1000"}) {
    Strings all = {
        "cluster.num_nodes=2",          "services.policy_trainer.num_nodes=2", "services.critic_trainer.num_nodes=1",
        "services.rollout.num_nodes=1", "services.scorer.num_nodes=1",         "actor.lr_warmup_ratio=0",
        "critic.lr_warmup_ratio=0",     "actor.lr_scheduler=constant",         "critic.lr_scheduler=constant"};
    all.insert(all.end(), fields.begin(), fields.end());
    run_ = WriteTinyRun(harness_, model_, 2, all);
    Strings arguments = {"--engine=slurm"};
    arguments.insert(arguments.end(), orchestrator.begin(), orchestrator.end());
    arguments.insert(arguments.end(), run_.arguments.begin(), run_.arguments.end());
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return hosts_->Start(harness_, 1, "deploy/launch", arguments, Environment());
  }

  // The same of fine-tuning, whose trainer is on two nodes.
  pid_t LaunchFineTuning(const Strings& fields, const std::map<std::string, std::string>& more = {}) {
    const std::string rows = harness_.Write(
        "rows.jsonl", "{\"prompt\": \"1+1=\", \"response\": \"2\"}\n{\"prompt\": \"2+3=\", \"response\": \"5\"}\n");
    run_.run_dir = harness_.Path("fine_tuned");
    Strings arguments = {"--engine=slurm",
                         "--program=sft",
                         "--set=run_dir=" + run_.run_dir,
                         "--set=sft.data=" + rows,
                         "--set=actor.pretrain=" + model_,
                         "--set=actor.max_len=32",
                         "--set=train.train_batch_size=4",
                         "--set=cluster.num_nodes=2",
                         "--set=services.policy_trainer.num_nodes=2"};
    for (const std::string& field : fields) arguments.push_back("--set=" + field);
    std::map<std::string, std::string> environment = Environment();
    environment.insert(more.begin(), more.end());
    return hosts_->Start(harness_, 1, "deploy/launch", arguments, environment);
  }

  // Lets a job of a higher partition take the nodes.
  void Preempt(pid_t launch) {
    On(1, {"sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"});
    EXPECT_TRUE(harness_.WaitForOutput(launch, "asked to end: queued again", kLong)) << harness_.Output(launch);
  }

  std::vector<nlohmann::json> WaitForSteps(pid_t launch, size_t steps) {
    auto records = WaitForRecords(harness_, launch, run_.run_dir + "/metrics.jsonl", steps, kLong);
    EXPECT_GE(records.size(), steps) << harness_.Output(launch);
    return records;
  }

  // The run goes on, and has made every step once.
  void ExpectGoesOn(pid_t launch) {
    ASSERT_TRUE(harness_.WaitForOutput(launch, "going on after ", kLong)) << harness_.Output(launch);
    const size_t before = ReadRecords(run_.run_dir + "/metrics.jsonl").size();
    const auto records = WaitForSteps(launch, before + 3);
    for (size_t step = 0; step < records.size(); ++step) EXPECT_EQ(records[step].at("step"), step);
  }

  // Ends the job as its user does. On a host that Slurm had lost it may take steps of the earlier start for the job's,
  // and not end them: there services end once no orchestrator is there.
  void Cancel(pid_t launch) {
    On(1, {"scancel", "--user=root"});
    const auto outcome = harness_.Wait(launch, kLong);
    EXPECT_EQ(outcome.exit_code, 130) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("has ended: CANCELLED"));
    EXPECT_EQ(On(1, {"squeue", "--noheader", "--format=%T"}).find("PENDING"), std::string::npos)
        << "it is queued again";
  }

  void ExpectNothingIsLeft() {
    for (const pid_t left : harness_.Survivors(absl::Seconds(60))) {
      ADD_FAILURE() << "is left running: " << ProcessHarness::CommandLine(left);
    }
  }

  void ExpectLosesNoStepByPreemption(pid_t launch) {
    WaitForSteps(launch, 2);
    Preempt(launch);
    ExpectGoesOn(launch);
    EXPECT_FALSE(std::filesystem::exists(run_.run_dir + "/superseded")) << "no step was made twice";
  }

  static inline std::string missing_;
  static inline std::unique_ptr<SimulatedHosts> hosts_;
  ProcessHarness harness_;
  std::string model_;
  TinyRun run_;
};

TEST_F(SlurmTest, RunsOverThreeHosts) {
  const pid_t launch = Launch({});
  const auto outcome = harness_.Wait(launch, kLong);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("batch script: " + run_.run_dir + "/launch/job.sh"),
                    ContainsRegex("submitted: job [0-9]+; \"scancel "), HasSubstr("done: " + run_.run_dir)));
  const auto records = ReadRecords(run_.run_dir + "/metrics.jsonl");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_THAT(On(1, {"cat", run_.run_dir + "/logs/policy_trainer.log"}),
              AllOf(ContainsRegex("policy_trainer/0\\] serving on host1:"),
                    ContainsRegex("policy_trainer/1\\] serving on 10.77.0.2:")));
  ExpectNothingIsLeft();

  // As with all services on one host.
  Strings alone = run_.arguments;
  for (const char* flag : {"--launch", "--set=services.policy_trainer.num_nodes=1", "--set=cluster.num_nodes=1"})
    alone.emplace_back(flag);
  alone.push_back("--set=run_dir=" + harness_.Path("alone"));
  const auto one_host = harness_.Run(kOrchestrator, alone, kLong);
  ASSERT_EQ(one_host.exit_code, 0) << one_host.output;
  const auto expected = ReadRecords(harness_.Path("alone") + "/metrics.jsonl");
  ASSERT_EQ(expected.size(), 3u);
  for (size_t step = 0; step < 3; ++step) ExpectSameMetrics(records[step], expected[step], 1e-4);
}

TEST_F(SlurmTest, NamesAHostWhoseLinkIsSlow) {
  const Strings everywhere = {"cluster.num_nodes=3", "services.policy_trainer.ranks=3",
                              "services.policy_trainer.num_nodes=3", "services.policy_trainer.collective_backend=gloo"};
  const auto check = [&] {
    auto outcome = harness_.Wait(Launch(everywhere, {"--check=only"}, {}), kLong);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  const std::string well = check();
  EXPECT_THAT(well,
              AllOf(ContainsRegex("host1: ranks .* of the policy_trainer"), HasSubstr("host3: ranks"),
                    HasSubstr("all_gather over 3 ranks"), HasSubstr("checked: "), Not(HasSubstr("its link is slow"))));
  hosts_->Limit(3, "200mbit");
  const std::string slow = check();
  hosts_->Limit(3, "100gbit");
  EXPECT_THAT(slow, HasSubstr("warning: host3: its link is slow. "));
  EXPECT_FALSE(std::filesystem::exists(run_.run_dir + "/metrics.jsonl"));
  ExpectNothingIsLeft();
}

TEST_F(SlurmTest, WaitsForNoServiceThatDidNotStayToBeChecked) {
  // The port of Slurm's own daemon.
  const auto outcome = harness_.Wait(Launch({"services.scorer.listen=0.0.0.0:6818"}, {"--check=only"}), kLong);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("the scorer did not stay to be checked:"),
                                    HasSubstr("the address is in use by another process"),
                                    Not(HasSubstr("the critic_trainer did not stay"))));
  EXPECT_THAT(outcome.output, Not(HasSubstr("check: the scorer"))) << "the check waited for it until it gave up";
  ExpectNothingIsLeft();
}

TEST_F(SlurmTest, ReplacesServicesOfARunThatIsPreemptedLaterAndGoesOn) {
  const pid_t launch = Launch({"train.max_steps=100000"});
  WaitForSteps(launch, 2);
  const auto upgrade = [&](const std::string& service, const std::string& bundle) {
    return harness_.Wait(hosts_->Start(harness_, 3, "orchestrator/upgrade",
                                       {"--service=" + service, "--bundle=" + bundle, "--run_dir=" + run_.run_dir}),
                         kLong);
  };
  const auto all = upgrade("all", ".");
  EXPECT_EQ(all.exit_code, 0) << all.output << harness_.Output(launch);
  for (const std::string& service : kServiceNames)
    EXPECT_THAT(all.output, HasSubstr("the " + service + " is replaced"));
  const std::string trainer = harness_.Path("ending/policy_trainer"),
                    real = std::filesystem::absolute("policy_trainer").string();
  std::filesystem::create_directories(trainer);
  std::filesystem::create_symlink(real + "/rank", trainer + "/rank");
  std::filesystem::permissions(
      harness_.Write("ending/policy_trainer/policy_trainer", absl::StrCat("#!/bin/sh\n[ $1 != --version ] || exec ",
                                                                          real, "/policy_trainer --version\nexit 7\n")),
      std::filesystem::perms::owner_all);
  const auto refused = upgrade("policy_trainer", harness_.Path("ending"));
  EXPECT_EQ(refused.exit_code, 1) << refused.output;
  // Of two tasks Slurm ends the one by SIGTERM when the other has ended.
  EXPECT_THAT(refused.output, AllOf(ContainsRegex("policy_trainer ended by itself: exit code (7|143)"),
                                    HasSubstr("the policy_trainer is as it was before")));
  const auto records = WaitForSteps(launch, ReadRecords(run_.run_dir + "/metrics.jsonl").size() + 3);
  for (size_t step = 0; step < records.size(); ++step) EXPECT_EQ(records[step].at("step"), step);
  // A new start of the job is by what was replaced, too.
  std::filesystem::create_directories(harness_.Path("other"));
  std::filesystem::create_symlink(std::filesystem::absolute("scorer"), harness_.Path("other/scorer"));
  const auto other = upgrade("scorer", harness_.Path("other"));
  EXPECT_EQ(other.exit_code, 0) << other.output;
  ExpectLosesNoStepByPreemption(launch);
  EXPECT_FALSE(harness_.Find(harness_.Path("other/scorer/scorer")).empty());
  Cancel(launch);
  ExpectNothingIsLeft();
}

TEST_F(SlurmTest, GoesOnWithoutAHostThatIsLost) {
  const pid_t launch =
      Launch({"train.max_steps=100000", "train.save_steps=1", "services.orchestrator_timeout_seconds=30"});
  WaitForSteps(launch, 2);
  hosts_->Cut(2);
  ASSERT_TRUE(harness_.WaitForOutput(launch, "is queued again", kLong)) << harness_.Output(launch);
  hosts_->Mend(2);
  ExpectGoesOn(launch);
  Cancel(launch);
  ExpectNothingIsLeft();
}

TEST_F(SlurmTest, GoesOnAfterADaemonOfSlurmHasDied) {
  const pid_t launch =
      Launch({"train.max_steps=100000", "train.save_steps=1", "services.orchestrator_timeout_seconds=30"});
  WaitForSteps(launch, 2);
  for (const pid_t daemon : hosts_->harness().Find("-N host2")) kill(daemon, SIGKILL);
  ASSERT_TRUE(harness_.WaitForOutput(launch, "is queued again", kLong)) << harness_.Output(launch);
  StartNode(2);
  ExpectGoesOn(launch);
  Cancel(launch);
  ExpectNothingIsLeft();
}

TEST_F(SlurmTest, IsQueuedAgainWhenAServiceDiesUntilItHelpsNoMore) {
  const pid_t launch = Launch({"train.max_steps=100000", "train.save_steps=1"}, {"--max_restarts=0"});
  WaitForSteps(launch, 2);
  for (const pid_t rank : harness_.Find("critic_trainer/rank")) kill(rank, SIGKILL);
  const auto outcome = harness_.Wait(launch, kLong);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("has failed 1 times with step_"), HasSubstr("has ended: FAILED, exit code 1")));
  ExpectNothingIsLeft();
}

TEST_F(SlurmTest, FineTunesOverTwoHostsAndGoesOnAfterAFailure) {
  // Not reached by the second start.
  const pid_t launch = LaunchFineTuning({"train.max_steps=7", "train.save_steps=3"},
                                        {{"QUARTET_FAIL_POINTS", "policy_trainer.update=kill@5"}});
  const auto outcome = harness_.Wait(launch, kLong);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("checked: nothing is in the way"), HasSubstr("is queued again"),
                                    HasSubstr("going on after 3 of 7 steps"), HasSubstr("done: " + run_.run_dir)));
  EXPECT_EQ(ReadRecords(run_.run_dir + "/metrics.jsonl").size(), 7u);
  EXPECT_FALSE(std::filesystem::exists(run_.run_dir + "/logs/rollout.log"));
  ExpectNothingIsLeft();
}

TEST_F(SlurmTest, SavesFineTuningWhenItIsPreemptedAndGoesOn) {
  const pid_t launch = LaunchFineTuning({"train.max_steps=100000"});
  ExpectLosesNoStepByPreemption(launch);
  Cancel(launch);
  ExpectNothingIsLeft();
}

TEST_F(SlurmTest, SaysWhatAJobWaitsFor) {
  On(1, {"sbatch", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1000"});
  const pid_t launch = Launch({});
  ASSERT_TRUE(harness_.WaitForOutput(launch, "has not started yet: ", kLong)) << harness_.Output(launch);
  kill(launch, SIGINT);
  const auto outcome = harness_.Wait(launch, kLong);
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.output, ContainsRegex("job [0-9]+ goes on; .*\"scancel [0-9]+\" ends it"));
  EXPECT_THAT(On(1, {"squeue", "--noheader", "--format=%j %T"}), HasSubstr("quartet PENDING"));
}

TEST_F(SlurmTest, RefusesWhatCannotRunBeforeItIsQueued) {
  const auto refused = [&](const Strings& fields, const Strings& flags) {
    const auto outcome = harness_.Wait(Launch(fields, flags), kLong);
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_EQ(On(1, {"squeue", "--noheader"}), "");
    return outcome.output;
  };
  EXPECT_THAT(refused({}, {"--sbatch=--partition=nonsense"}),
              AllOf(HasSubstr("sbatch refuses"), HasSubstr("invalid partition")));
  EXPECT_THAT(
      refused({"cluster.num_nodes=7", "services.policy_trainer.ranks=7", "services.policy_trainer.num_nodes=7"}, {}),
      HasSubstr("would wait for ever: PartitionNodeLimit"));
  EXPECT_THAT(refused({"data.prompt_data=/nowhere.jsonl"}, {}), HasSubstr("/nowhere.jsonl"));
  EXPECT_THAT(refused({"services.policy_trainer.ranks=3"}, {}),
              HasSubstr("services.policy_trainer.ranks: 3 is not allowed"));
}

}  // namespace
}  // namespace quartet

// Runs whose services and ranks are on several hosts, started by hand. The hosts are network namespaces, which root
// alone can make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/process_harness.h"
#include "tests/simulated_hosts.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Strings = std::vector<std::string>;

constexpr absl::Duration kLong = absl::Minutes(3);

class HostsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    missing_ = SimulatedHosts::Missing({"openssl"});
    if (missing_.empty()) hosts_ = std::make_unique<SimulatedHosts>(3);
  }
  static void TearDownTestSuite() { hosts_ = nullptr; }

  void SetUp() override {
    if (!missing_.empty()) GTEST_SKIP() << "needs " << missing_ << " (package iproute2)";
    run_ = WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1, {"services.policy_trainer.ranks=2"});
    MakeCertificates("DNS:host1,DNS:host2,DNS:host3,DNS:leader,IP:10.77.0.1,IP:10.77.0.2,IP:10.77.0.3");
  }

  void MakeCertificates(const std::string& names) {
    const auto made = harness_.Run("tests/cluster/certificates.sh", {harness_.folder(), names}, kLong);
    ASSERT_EQ(made.exit_code, 0) << made.output;
  }

  // Where the leaders are, and the certificates.
  Strings Arguments(const Strings& more = {}) const {
    Strings arguments = run_.arguments;
    for (const char* place : {"policy_trainer.listen=host1:7001", "critic_trainer.listen=host2:7002",
                              "rollout.listen=host3:7003", "scorer.listen=host1:7004"}) {
      arguments.push_back(absl::StrCat("--set=services.", place));
    }
    for (const auto& [field, file] :
         {std::pair("ca_file", "cert.pem"), {"cert_file", "cert.pem"}, {"key_file", "key.pem"}}) {
      arguments.push_back(absl::StrCat("--set=tls.", field, "=", harness_.Path(file)));
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // A service by its launcher; with `rank` one rank of two, as torchrun starts it.
  pid_t Start(const std::string& service, int host, int rank = -1, const Strings& more = {},
              std::map<std::string, std::string> environment = {}) {
    if (rank >= 0) {
      environment.insert(
          {{"RANK", absl::StrCat(rank)}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}});
    }
    return services_.emplace_back(
        hosts_->Start(harness_, host, absl::StrCat(service, "/", service), Arguments(more), environment));
  }
  void StartServices(const Strings& more = {}) {
    Start("policy_trainer", 1, 0, more);
    Start("policy_trainer", 2, 1, more);
    Start("critic_trainer", 2, -1, more);
    Start("rollout", 3, -1, more);
    Start("scorer", 1, -1, more);
  }
  // Once services listen: it does not wait for those that are late.
  pid_t StartOrchestrator(const Strings& more = {}) {
    for (const pid_t service : services_) harness_.WaitForOutput(service, "serving on", kLong);
    return hosts_->Start(harness_, 3, kOrchestrator, Arguments(more));
  }
  size_t WaitForSteps(pid_t orchestrator, size_t steps) {
    const size_t made = WaitForRecords(harness_, orchestrator, run_.run_dir + "/metrics.jsonl", steps, kLong).size();
    EXPECT_GE(made, steps) << harness_.Output(orchestrator);
    return made;
  }
  // Of all services.
  std::string Outputs() const {
    std::string text;
    for (const pid_t service : services_) text += harness_.Output(service);
    return text;
  }

  static inline std::string missing_;
  static inline std::unique_ptr<SimulatedHosts> hosts_;
  ProcessHarness harness_;
  TinyRun run_;
  std::vector<pid_t> services_;
};

TEST_F(HostsTest, RanksOfAServiceAndServicesAreOnDifferentHosts) {
  StartServices();
  const pid_t orchestrator = StartOrchestrator();
  const auto outcome = harness_.Wait(orchestrator, kLong);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output << Outputs();
  EXPECT_EQ(ReadRecords(run_.run_dir + "/metrics.jsonl").size(), 3u);
  EXPECT_THAT(Outputs(), AllOf(HasSubstr("[policy_trainer/0] serving on host1:7001"),
                               HasSubstr("[policy_trainer/1] serving on 10.77.0.2:")));
}

TEST_F(HostsTest, GoesOnAfterALinkThatWasDown) {
  StartServices();
  const pid_t orchestrator = StartOrchestrator({"--set=train.max_steps=100000"});
  WaitForSteps(orchestrator, 2);
  hosts_->Cut(2);
  absl::SleepFor(absl::Seconds(3));
  const size_t before = ReadRecords(run_.run_dir + "/metrics.jsonl").size();
  hosts_->Mend(2);
  WaitForSteps(orchestrator, before + 3);
  kill(orchestrator, SIGINT);
  EXPECT_EQ(harness_.Wait(orchestrator, kLong).exit_code, 130);
}

TEST_F(HostsTest, NamesWhatIsOnAHostThatIsLost) {
  StartServices();
  const pid_t orchestrator = StartOrchestrator({"--set=train.max_steps=100000"});
  WaitForSteps(orchestrator, 2);
  hosts_->Cut(2);
  const auto outcome = harness_.Wait(orchestrator, kLong);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  // Who is asked first: a trainer with a rank there, or the rollout, which pulls weights from that rank.
  EXPECT_THAT(outcome.output, AnyOf(HasSubstr("critic_trainer at host2:7002"),
                                    HasSubstr("policy_trainer at host1:7001"), HasSubstr("source 10.77.0.2:")));
  hosts_->Mend(2);
  // The ranks of the trainer that is on both hosts end by themselves, where they were at a call.
  if (!absl::StrContains(outcome.output, "policy_trainer at host1:7001")) return;
  for (size_t rank : {0, 1}) {
    EXPECT_TRUE(harness_.Wait(services_[rank], kLong).ended) << harness_.Output(services_[rank]);
  }
}

TEST_F(HostsTest, IsRightOnASlowLink) {
  hosts_->Limit(2, "20mbit");
  StartServices();
  const pid_t orchestrator = StartOrchestrator();
  const auto outcome = harness_.Wait(orchestrator, kLong);
  hosts_->Limit(2, "10gbit");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output << Outputs();
  EXPECT_EQ(ReadRecords(run_.run_dir + "/metrics.jsonl").size(), 3u);
}

TEST_F(HostsTest, AreLookedAtBeforeModelsAreLoaded) {
  // All hosts are this machine's, where ranks would meet in its memory.
  const Strings fields = {"--set=services.policy_trainer.collective_backend=gloo", "--set=cluster.inter_node_gbps=1",
                          "--set=cluster.num_nodes=3"};
  Strings checked = fields;
  checked.emplace_back("--check");
  StartServices(checked);
  const auto check = [&] {
    Strings arguments = Arguments(fields);
    arguments.emplace_back("--services_run");
    return harness_.Wait(hosts_->Start(harness_, 3, "orchestrator/check", arguments), kLong);
  };
  const auto well = check();
  EXPECT_EQ(well.exit_code, 0) << well.output << Outputs();
  EXPECT_THAT(well.output,
              AllOf(HasSubstr("host1: ranks 1 of the policy_trainer, 1 of the scorer"),
                    HasSubstr("host1 -> host2, collectives of the policy_trainer: "),
                    ContainsRegex("host2 -> host3, weight transfer: .*, the first bytes after [0-9.e+]+ ms"),
                    HasSubstr("checked: ")));
  hosts_->Limit(2, "100mbit");
  const auto slow = check();
  hosts_->Limit(2, "10gbit");
  EXPECT_EQ(slow.exit_code, 0) << slow.output;
  EXPECT_THAT(slow.output, AllOf(HasSubstr("warning: host2: its link is slow. collectives of the policy_trainer from "
                                           "host1 to host2: 0.0"),
                                 HasSubstr("weight transfer from host2 to host3: 0.0"),
                                 HasSubstr("cluster.inter_node_gbps says 1 Gb/s")));
}

// As Debian's installer has it: a host's own name is loopback there, and others know it under another.
class OtherNamesTest : public HostsTest {
 protected:
  void SetUp() override {
    HostsTest::SetUp();
    if (IsSkipped()) return;
    const std::string own = harness_.Write(
        "own", "127.0.0.1 localhost\n127.0.1.1 host1\n10.77.0.1 leader\n10.77.0.2 host2\n10.77.0.3 host3\n");
    hosts_->Output(1, {"mount", "--bind", own, "/etc/hosts"});
    const std::string others =
        harness_.Write("others", "127.0.0.1 localhost\n10.77.0.1 leader\n10.77.0.2 host2\n10.77.0.3 host3\n");
    for (const int host : {2, 3}) hosts_->Output(host, {"mount", "--bind", others, "/etc/hosts"});
  }
  void TearDown() override {
    if (IsSkipped()) return;
    for (const int host : {1, 2, 3}) hosts_->Output(host, {"umount", "/etc/hosts"});
  }
};

TEST_F(OtherNamesTest, RanksMeetUnderTheNameThatAllOfThemKnow) {
  const std::map<std::string, std::string> master = {{"MASTER_ADDR", "leader"}};
  Start("policy_trainer", 1, 0, {"--listen=0.0.0.0:7001"}, master);
  Start("policy_trainer", 2, 1, {"--listen=0.0.0.0:7001"}, master);
  Start("critic_trainer", 2);
  Start("rollout", 3);
  Start("scorer", 1, -1, {"--listen=leader:7004"});
  const pid_t orchestrator = StartOrchestrator(
      {"--set=services.policy_trainer.listen=leader:7001", "--set=services.scorer.listen=leader:7004"});
  const auto outcome = harness_.Wait(orchestrator, kLong);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output << Outputs();
}

TEST_F(OtherNamesTest, ANameThatIsLoopbackHereIsRefusedWhereRanksAreElsewhere) {
  const auto leader = harness_.Wait(Start("policy_trainer", 1, 0), kLong);
  EXPECT_EQ(leader.exit_code, 2);
  EXPECT_THAT(leader.output, AllOf(HasSubstr("services.policy_trainer.listen is host1:7001"), HasSubstr("127.0.1.1"),
                                   HasSubstr("10.77.0.1")));
}

TEST_F(HostsTest, CertificatesOfOtherNamesAreNamed) {
  MakeCertificates("DNS:elsewhere,IP:10.77.0.1,IP:10.77.0.2,IP:10.77.0.3");
  for (const auto& [service, host] : {std::pair("critic_trainer", 2), {"rollout", 3}, {"scorer", 1}})
    Start(service, host);
  const pid_t orchestrator = StartOrchestrator({"--set=train.call_timeout_seconds=2"});
  const auto outcome = harness_.Wait(orchestrator, kLong);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("certificate"));
}

}  // namespace
}  // namespace quartet

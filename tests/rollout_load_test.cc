// A rollout that is offered more than it admits refuses what is too much, answers all the rest, and has its memory back
// afterwards.

#include "tests/rollout_load.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::Contains;
using ::testing::Gt;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;

class RolloutLoadTest : public ::testing::TestWithParam<int> {};

TEST_P(RolloutLoadTest, AnswersOrRefusesEachCallAndKeepsNothing) {
  ProcessHarness harness;
  // 8 sequences run and 16 wait; a rank's cache has five blocks for its four, so that some are preempted too.
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 2,
                                   {"rollout.max_num_seqs=4", "rollout.max_waiting=16", "rollout.kv_cache_bytes=32768",
                                    absl::StrCat("rollout.zero_stage=", GetParam())});
  const auto [rollout, address] = harness.StartService("rollout", run.arguments);
  ASSERT_FALSE(address.empty()) << harness.Output(rollout);

  RolloutLoad load;
  load.address = address;
  load.duration = absl::Seconds(3);
  load.calls = 16;
  load.longest_prompt = 16;
  load.processes = harness.Alive();
  auto report = OfferLoad(load);
  const auto preempted = [&] { return report->after.metrics().at("rollout/preemptions") > 0; };
  // On a slow machine few are long at the same time.
  for (int i = 0; i < 10 && report.ok() && report->mistakes.empty() && !preempted(); ++i) report = OfferLoad(load);
  ASSERT_TRUE(report.ok()) << report.status() << '\n' << harness.Output(rollout);
  EXPECT_THAT(report->mistakes, IsEmpty());
  EXPECT_GT(report->answered, 0);
  EXPECT_GT(report->refused, 0);
  EXPECT_GT(report->cancelled, 0);
  EXPECT_EQ(report->calls, report->answered + report->refused + report->cancelled);
  EXPECT_TRUE(preempted());
  EXPECT_LT(report->resident_growth(), 32 << 20);
  EXPECT_EQ(report->after.metrics().at("rollout/running"), 0);
  EXPECT_EQ(report->after.metrics().at("rollout/waiting"), 0);
  EXPECT_EQ(report->after.metrics().at("rollout/kv_cache_usage"), 0);

  // A call that does not end in time, and a process that is not there, do not pass for well.
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  ASSERT_EQ(waitpid(gone, nullptr, 0), gone);
  load.processes = {gone};
  load.duration = absl::Seconds(1);
  load.patience = absl::Milliseconds(1);
  const auto bad = OfferLoad(load);
  ASSERT_TRUE(bad.ok()) << bad.status();
  EXPECT_THAT(bad->mistakes, Contains(Pair(absl::StrCat("process ", gone, " has no memory"), Gt(0))));
  EXPECT_THAT(bad->mistakes, Contains(Pair(StartsWith("DEADLINE_EXCEEDED"), Gt(0))));

  kill(rollout, SIGTERM);
  EXPECT_EQ(harness.Wait(rollout, absl::Seconds(10)).exit_code, 0);
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(, RolloutLoadTest, ::testing::Values(0, 3),
                         [](const auto& info) { return info.param == 0 ? "Replicated" : "Sharded"; });

}  // namespace
}  // namespace quartet

#include "viewer/run_status/run_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/files/files.h"
#include "core/base/testing/scratch_folder.h"
#include "core/clients/testing/fake_services.h"
#include "core/run_folder/phase_file.h"
#include "core/run_folder/run_folder.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RunStatusTest : public ::testing::Test {
 protected:
  RunStatusTest() : config_(services_.MakeConfig(scratch_.path(), 9)) {}

  void StartRun() {
    folder_ = RunFolder::Create(config_).value();
    ASSERT_TRUE(folder_->BeginAfter(0).ok());
    RunState state = {.program = "orchestrator", .state = "running", .steps = 9};
    for (const char* service : {"rollout", "scorer"}) state.services[service] = services_.address(service);
    ASSERT_TRUE(folder_->WriteState(state).ok());
  }

  void MakeStep(int64_t step) {
    Metrics metrics;
    metrics.Set("time/step", 2);
    ASSERT_TRUE(folder_->WriteMetrics(step, metrics).ok());
  }

  RunStatus Read() {
    absl::StatusOr<RunStatus> status = ReadRunStatus(config_.run_dir());
    EXPECT_TRUE(status.ok()) << status.status();
    return *std::move(status);
  }

  ScratchFolder scratch_;
  FakeServices services_;
  RunConfig config_;
  std::unique_ptr<RunFolder> folder_;
};

TEST_F(RunStatusTest, OfARunThatGoesOnSaysHowFarItIsAndWhatItDoes) {
  StartRun();
  MakeStep(0);
  MakeStep(1);
  PhaseFile(config_.run_dir()).Say("step 2/9  update");
  ASSERT_TRUE(folder_->WriteEvent("restart", 1, "orchestrator", "the run goes on after step 1").ok());
  RunStatus status = Read();
  EXPECT_EQ(status.state, "running");
  EXPECT_EQ(status.steps_done, 2);
  EXPECT_THAT(status.holder, HasSubstr("process "));
  AskServices(absl::Seconds(5), &status);
  ASSERT_EQ(status.services.size(), 2);
  for (const ServiceStatus& service : status.services) EXPECT_TRUE(service.status.ok()) << service.status;
  EXPECT_THAT(
      PrintRunStatus(status, absl::Now()),
      AllOf(HasSubstr("running"), HasSubstr("2 of 9; the last one ended 0 s ago; one takes 2 s; 14 s left"),
            HasSubstr("step 2/9  update, for 0 s"), HasSubstr("1 restarts, 0 errors, 0 warnings"),
            HasSubstr("the run goes on after step 1"), HasSubstr("none yet"), HasSubstr(services_.address("rollout"))));
}

TEST_F(RunStatusTest, OfAServiceThatIsGoneSaysSo) {
  StartRun();
  services_.Kill("scorer");
  RunStatus status = Read();
  AskServices(absl::Seconds(1), &status);
  EXPECT_THAT(PrintRunStatus(status, absl::Now()), HasSubstr("does not answer: scorer at "));
  EXPECT_TRUE(status.services[0].status.ok()) << status.services[0].status;
}

// Killed, or its machine is gone: nobody has said why.
TEST_F(RunStatusTest, OfARunWhoseOrchestratorIsGoneSaysThatItIsLost) {
  StartRun();
  PhaseFile(config_.run_dir()).Say("step 0/9  generate");
  folder_ = nullptr;
  const RunStatus status = Read();
  EXPECT_EQ(status.state, "lost");
  EXPECT_EQ(status.holder, "");
  EXPECT_THAT(PrintRunStatus(status, absl::Now()),
              AllOf(HasSubstr("its orchestrator has ended without a word"), Not(HasSubstr("generate"))));
}

TEST_F(RunStatusTest, OfARunThatIsOverSaysWhy) {
  StartRun();
  ASSERT_TRUE(
      folder_->WriteState({.program = "orchestrator", .state = "failed", .why = "a rank died\nat step 3", .steps = 9})
          .ok());
  folder_ = nullptr;
  EXPECT_THAT(PrintRunStatus(Read(), absl::Now()), HasSubstr("failed\n  a rank died\n  at step 3\n"));
}

TEST_F(RunStatusTest, NamesTheNewestCheckpointThatIsWhole) {
  StartRun();
  for (const int64_t step : {9, 10, 20}) {
    const std::string folder = folder_->checkpoint_path(absl::StrCat("step_", step));
    ASSERT_TRUE(MakeDirs(folder).ok());
    if (step < 20) {
      ASSERT_TRUE(AtomicWriteFile(folder + "/checkpoint.json", "{}").ok());
    }
  }
  EXPECT_EQ(Read().checkpoint, "step_10");
}

TEST_F(RunStatusTest, CountsTheWarningsAndErrorsOfLogsToo) {
  StartRun();
  ASSERT_TRUE(folder_->WriteEvent("warning", 1, "orchestrator", "rewards are equal").ok());
  ASSERT_TRUE(AtomicWriteFile(folder_->logs_path() + "/scorer.log",
                              "E20261122 10:11:12.123456  12 a.cc:3] [scorer/0] a worker died\n"
                              "W20261122 10:11:13.123456  12 a.cc:4] [scorer/0] a reward server is slow\n"
                              "I20261122 10:11:13.123456  12 a.cc:4] [scorer/0] fine\n")
                  .ok());
  const RunStatus status = Read();
  EXPECT_EQ(status.errors, 1);
  EXPECT_EQ(status.warnings, 2);
}

TEST_F(RunStatusTest, IsReadWithoutChangingTheFolder) {
  StartRun();
  MakeStep(0);
  const auto before = scratch_.Contents();
  Read();
  EXPECT_EQ(scratch_.Contents(), before);
}

TEST_F(RunStatusTest, DoesNotWaitForAPipeInPlaceOfAFile) {
  StartRun();
  const std::string path = config_.run_dir() + "/metrics.jsonl";
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(ReadRunStatus(config_.run_dir()).status(), absl::InvalidArgumentError(path + " is not a regular file"));
}

TEST_F(RunStatusTest, OfAFolderWithoutARunIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(ReadRunStatus(scratch_.path()).status()));
}

TEST_F(RunStatusTest, OfARunOfAnEarlierReleaseIsShown) {
  StartRun();
  MakeStep(0);
  const std::string record = scratch_.Read("run/run.textproto");
  for (const std::string& earlier :
       {"sft {\n  batch_size: 4\n  learning_rate: 1e-5\n}\n" + record, "gone { of { it: \"\" } }\n" + record}) {
    scratch_.Write("run/run.textproto", earlier);
    RunStatus status = Read();
    AskServices(absl::Seconds(5), &status);
    EXPECT_EQ(status.steps_done, 1);
    ASSERT_EQ(status.services.size(), 2);
    for (const ServiceStatus& service : status.services) EXPECT_TRUE(service.status.ok()) << service.status;
  }
  // What cannot be read keeps services from being asked, and nothing else from being shown.
  scratch_.Write("run/run.textproto", "rollout {\n");
  RunStatus status = Read();
  AskServices(absl::Seconds(5), &status);
  EXPECT_EQ(status.steps_done, 1);
  EXPECT_THAT(PrintRunStatus(status, absl::Now()), HasSubstr("run.textproto:2"));
}

}  // namespace
}  // namespace quartet

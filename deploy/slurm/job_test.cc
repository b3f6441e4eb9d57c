#include "deploy/slurm/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/testing/scratch_folder.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Slurm's commands are scripts of the test; PATH has nothing else but the system's own.
class SlurmJobTest : public ::testing::Test {
 protected:
  SlurmJobTest() { setenv("PATH", absl::StrCat(scratch_.path(), ":/usr/bin:/bin").c_str(), 1); }
  ~SlurmJobTest() override { setenv("PATH", path_.c_str(), 1); }

  void Command(const std::string& name, const std::string& script) {
    const std::string file = scratch_.Write(name, "#!/bin/sh\n" + script + "\n");
    chmod(file.c_str(), 0755);
  }

  ScratchFolder scratch_;
  const std::string path_ = getenv("PATH");
};

TEST_F(SlurmJobTest, ReadsWhatSlurmSaysOfTheFirstComponent) {
  const SlurmJobState waits = ParseSlurmJob(
      "JobId=7 HetJobId=7 HetJobOffset=0 JobName=quartet JobState=PENDING Reason=Resources Dependency=(null) Requeue=1 "
      "Restarts=2 BatchFlag=1 ExitCode=0:0\nJobId=8 HetJobId=7 HetJobOffset=1 JobState=RUNNING Reason=None "
      "ExitCode=3:0");
  EXPECT_EQ(waits.state, "PENDING");
  EXPECT_EQ(waits.reason, "Resources");
  EXPECT_EQ(waits.restarts, 2);
  EXPECT_EQ(waits.exit_code, 0);
  EXPECT_EQ(ParseSlurmJob("JobState=FAILED ExitCode=2:0").exit_code, 2);
  EXPECT_EQ(ParseSlurmJob("JobState=CANCELLED ExitCode=0:15").exit_code, 143);
}

TEST_F(SlurmJobTest, TakesTheIdFromBelowWarnings) {
  Command("sbatch", "echo 'sbatch: this partition is slow' >&2; echo '17;cluster'");
  const Cancellation cancellation;
  EXPECT_EQ(SubmitSlurmJob("/a job.sh", cancellation).value_or(""), "17");
  Command("sbatch", "echo \"sbatch: error: invalid partition specified: $2\" >&2; exit 1");
  EXPECT_EQ(SubmitSlurmJob("/a job.sh", cancellation).status().message(),
            "sbatch refuses /a job.sh: sbatch: error: invalid partition specified: /a job.sh");
}

TEST_F(SlurmJobTest, WaitsForNoCommandOnceItIsCancelled) {
  Command("scontrol", "touch " + scratch_.path() + "/asked; sleep 1000; true");
  Command("sbatch", "sleep 1000; true");
  Cancellation cancellation;
  std::thread ctrl_c([&] {
    while (!std::filesystem::exists(scratch_.path() + "/asked")) absl::SleepFor(absl::Milliseconds(5));
    cancellation.Cancel(absl::CancelledError("stopped by SIGINT"));
  });
  TerminalView view(stderr, false);
  FileTail none("/none");
  EXPECT_THAT(std::string(FollowSlurmJob("17", "/none", none, view, cancellation).message()),
              HasSubstr("job 17 goes on"));
  ctrl_c.join();
  EXPECT_EQ(SubmitSlurmJob("/job.sh", cancellation).status(),
            absl::CancelledError("squeue tells whether the job was submitted: stopped by SIGINT"));
}

TEST_F(SlurmJobTest, NamesTheCommandThatIsNotHere) {
  for (const char* command : {"sbatch", "scontrol", "squeue", "scancel"}) Command(command, "true");
  setenv("PATH", scratch_.path().c_str(), 1);
  EXPECT_THAT(std::string(CheckSlurm().message()),
              AllOf(HasSubstr("--engine=slurm: there is no srun here"), HasSubstr("login node")));
}

TEST_F(SlurmJobTest, FollowsAJobToItsEnd) {
  // Each call of scontrol finds it further on.
  Command("scontrol", absl::StrCat("cd ", scratch_.path(), R"(
    n=$(cat calls 2>/dev/null || echo 0); echo $((n + 1)) >calls
    case $n in
      0) echo JobState=PENDING Reason=Priority Restarts=0 ;;
      1) echo JobState=RUNNING Reason=None Restarts=0; printf 'earlier\nstep 0\nstep' >log ;;
      2) echo JobState=SIGNALING Reason=None Restarts=0 ;;
      3) echo JobState=PENDING Reason=BeginTime Restarts=1; printf 'earlier\nstep 0\nstep 1\n' >log ;;
      *) echo JobState=FAILED Restarts=1 ExitCode=2:0; echo end >>log ;;
    esac)"));
  char* shown = nullptr;
  size_t size = 0;
  std::FILE* const terminal = open_memstream(&shown, &size);
  Cancellation cancellation;
  {
    TerminalView view(terminal, false);
    const std::string path = scratch_.Write("log", "earlier\n");
    FileTail log(path);
    std::string earlier;
    ASSERT_TRUE(log.Read(&earlier).ok());
    const absl::Status end = FollowSlurmJob("17", path, log, view, cancellation);
    EXPECT_EQ(end, absl::InvalidArgumentError("job 17 has ended: FAILED, exit code 2"));
  }
  std::fclose(terminal);
  EXPECT_EQ(std::string(shown, size), "step 0\nstep 1\njob 17 is queued again\nend\n");
  std::free(shown);
}

TEST_F(SlurmJobTest, CancelsAJobThatCanNeverStart) {
  Command("scontrol", "echo JobState=PENDING Reason=PartitionNodeLimit");
  Command("scancel", "echo \"$1\" >" + scratch_.path() + "/cancelled");
  TerminalView view(stderr, false);
  Cancellation cancellation;
  FileTail none("/none");
  EXPECT_THAT(std::string(FollowSlurmJob("17", "/none", none, view, cancellation).message()),
              AllOf(HasSubstr("PartitionNodeLimit"), HasSubstr("cluster.num_nodes")));
  EXPECT_EQ(scratch_.Read("cancelled"), "17\n");
}

TEST_F(SlurmJobTest, LeavesAJobThatIsNotWatchedAnyMore) {
  Command("scontrol", "echo JobState=RUNNING");
  TerminalView view(stderr, false);
  Cancellation cancellation;
  FileTail none("/none");
  cancellation.Cancel(absl::CancelledError("stopped by SIGINT"));
  EXPECT_THAT(std::string(FollowSlurmJob("17", "/none", none, view, cancellation).message()),
              AllOf(HasSubstr("job 17 goes on"), HasSubstr("scancel 17")));
}

}  // namespace
}  // namespace quartet

// Starts small programs that behave, or misbehave, like services. What this supervisor does of what all must do
// (README.md): the first service to end ends the run and is named, nothing is left running; that of Slurm and that of
// Ray are tested in deploy/slurm/job_script_test.cc and deploy/ray/launch_test.py.
#include "orchestrator/launch/service_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "core/base/testing/scratch_folder.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ServiceLauncherTest : public ::testing::Test {
 protected:
  void Program(const std::string& service, const std::string& script) {
    const std::string path = scratch_.Write("bin/" + service + "/" + service, "#!/bin/bash\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  // Serves at once and until it is told to stop; its process id is in <service>.pid.
  std::string Serve(const std::string& service) {
    return "echo $$ > " + scratch_.path() + "/" + service +
           ".pid\n"
           "for a in \"$@\"; do case $a in --address_file=*) f=${a#--address_file=};; esac; done\n"
           "echo 127.0.0.1:1234 > $f.new; mv $f.new $f\n"
           "while true; do sleep 0.05; done\n";
  }
  ServiceLauncherOptions Options(const std::vector<std::string>& services) {
    std::filesystem::create_directories(scratch_.path() + "/logs");
    ServiceLauncherOptions options;
    options.services = services;
    options.programs_folder = scratch_.path() + "/bin";
    options.config_path = "/run.textproto";
    options.logs_folder = scratch_.path() + "/logs";
    options.start_timeout = absl::Seconds(20);
    options.cancellation = &cancellation_;
    return options;
  }
  pid_t Pid(const std::string& service) {
    int pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(scratch_.Read(service + ".pid"), &pid));
    return pid;
  }

  ScratchFolder scratch_;
  Cancellation cancellation_;
};

TEST_F(ServiceLauncherTest, TellsEachServiceItsGpusAndCores) {
  for (const char* service : {"rollout", "scorer"}) {
    Program(service, "echo \"$CUDA_VISIBLE_DEVICES $QUARTET_RANK_CORES\" > " + scratch_.path() + "/" + service +
                         ".environment\n" + Serve(service));
  }
  ServiceLauncherOptions options = Options({"rollout", "scorer"});
  options.plan = {{.service = "rollout", .gpu = 0, .cores = {0}, .environment = {{"CUDA_VISIBLE_DEVICES", "0,1"}}},
                  {.service = "rollout", .gpu = 1, .cores = {1}, .environment = {{"CUDA_VISIBLE_DEVICES", "0,1"}}},
                  {.service = "scorer", .gpu = 2, .environment = {{"CUDA_VISIBLE_DEVICES", "2"}}}};
  const auto launcher = ServiceLauncher::Start(options);
  ASSERT_TRUE(launcher.ok()) << launcher.status();
  EXPECT_EQ(scratch_.Read("rollout.environment"), "0,1 0;1\n");
  EXPECT_EQ(scratch_.Read("scorer.environment"), "2 \n");
}

TEST_F(ServiceLauncherTest, TellsEachServiceWhereToTrace) {
  Program("scorer", "echo \"$@\" > " + scratch_.path() + "/arguments\n" + Serve("scorer"));
  ServiceLauncherOptions options = Options({"scorer"});
  options.trace = "/runs/trace.json";
  const auto launcher = ServiceLauncher::Start(options);
  ASSERT_TRUE(launcher.ok()) << launcher.status();
  EXPECT_THAT(scratch_.Read("arguments"), HasSubstr("--trace=/runs/trace.scorer.json"));
}

TEST_F(ServiceLauncherTest, LeavesToTheConfigurationWhereServicesListen) {
  Program("scorer", "echo \"$@\" > " + scratch_.path() + "/arguments\n" + Serve("scorer"));
  const auto launcher = ServiceLauncher::Start(Options({"scorer"}));
  ASSERT_TRUE(launcher.ok()) << launcher.status();
  EXPECT_THAT(scratch_.Read("arguments"), AllOf(HasSubstr("--config=/run.textproto"), Not(HasSubstr("--listen"))));
  const ServicesConfig defaults = ServiceLauncher::Defaults({"scorer"}).services();
  EXPECT_EQ(defaults.scorer().listen(), "127.0.0.1:0");
  EXPECT_EQ(defaults.rollout().listen(), "");
}

TEST_F(ServiceLauncherTest, TellsWhatServicesAreAtThatAreNotUpYet) {
  const std::string go = scratch_.path() + "/go";
  Program("rollout", "echo '7 loading.cc:42] [rollout/0] loading: reading weights, 3 of 12'\n" +
                         ("until [ -e " + go + " ]; do sleep 0.05; done\n") + Serve("rollout"));
  Program("scorer", Serve("scorer"));
  ServiceLauncherOptions options = Options({"rollout", "scorer"});
  options.on_loading = [&](int64_t up, const std::string& loading) {
    if (up == 1 && loading == "rollout (reading weights, 3 of 12)") scratch_.Write("go", "");
  };
  const auto launcher = ServiceLauncher::Start(options);
  EXPECT_TRUE(launcher.ok()) << launcher.status();
}

TEST_F(ServiceLauncherTest, ShowsTheLogOfThisStartAlone) {
  scratch_.Write("logs/scorer.log", "what an earlier start said\n");
  Program("scorer", "echo what is wrong now\nexit 1\n");
  const auto launcher = ServiceLauncher::Start(Options({"scorer"}));
  EXPECT_THAT(std::string(launcher.status().message()),
              AllOf(HasSubstr("what is wrong now"), Not(HasSubstr("earlier"))));
  EXPECT_THAT(scratch_.Read("logs/scorer.log"), HasSubstr("earlier"));
}

TEST_F(ServiceLauncherTest, StartsServicesAndLeavesNoneBehind) {
  Program("rollout", Serve("rollout"));
  Program("scorer", Serve("scorer"));
  pid_t rollout = 0;
  {
    const auto launcher = ServiceLauncher::Start(Options({"rollout", "scorer"}));
    ASSERT_TRUE(launcher.ok()) << launcher.status();
    EXPECT_EQ((*launcher)->addresses().at("scorer"), "127.0.0.1:1234");
    EXPECT_TRUE((*launcher)->FindDeadService(absl::ZeroDuration()).ok());
    rollout = Pid("rollout");
    EXPECT_EQ(kill(rollout, 0), 0);
  }
  EXPECT_NE(kill(rollout, 0), 0);
  EXPECT_NE(kill(Pid("scorer"), 0), 0);
  EXPECT_TRUE(cancellation_.status().ok()) << "an ordered end is no failure";
}

TEST_F(ServiceLauncherTest, NamesAServiceThatDiesWithTheEndOfItsLog) {
  Program("rollout", Serve("rollout"));
  Program("scorer", "echo 'what went wrong' >&2\n" + Serve("scorer"));
  const auto launcher = ServiceLauncher::Start(Options({"rollout", "scorer"}));
  ASSERT_TRUE(launcher.ok()) << launcher.status();
  kill(Pid("scorer"), SIGKILL);
  const absl::Status death = (*launcher)->FindDeadService(absl::Seconds(10));
  EXPECT_THAT(std::string(death.message()),
              AllOf(HasSubstr("scorer ended by itself"), HasSubstr("SIGKILL"), HasSubstr("what went wrong")));
  while (cancellation_.status().ok()) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(cancellation_.status(), death) << "the run is told";
}

TEST_F(ServiceLauncherTest, TellsWhatAServiceWasToldWrongFromOtherDeaths) {
  const auto code_of = [&](int exit_code) {
    Program("scorer", "exit " + std::to_string(exit_code) + "\n");
    return ServiceLauncher::Start(Options({"scorer"})).status().code();
  };
  EXPECT_EQ(code_of(2), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(1), absl::StatusCode::kUnavailable);
}

TEST_F(ServiceLauncherTest, ReportsAServiceThatDoesNotComeUpAndStopsTheOthers) {
  Program("rollout", Serve("rollout"));
  Program("scorer", "sleep 0.5; echo 'no such model: /nowhere' >&2; exit 3\n");
  const auto launcher = ServiceLauncher::Start(Options({"rollout", "scorer"}));
  EXPECT_THAT(std::string(launcher.status().message()),
              AllOf(HasSubstr("scorer"), HasSubstr("exit code 3"), HasSubstr("no such model: /nowhere")));
  EXPECT_NE(kill(Pid("rollout"), 0), 0);
}

TEST_F(ServiceLauncherTest, GivesUpAServiceThatNeverServes) {
  Program("scorer", "sleep 60\n");
  ServiceLauncherOptions options = Options({"scorer"});
  options.start_timeout = absl::Milliseconds(300);
  const auto launcher = ServiceLauncher::Start(options);
  EXPECT_EQ(launcher.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(launcher.status().message()), HasSubstr("scorer did not come up"));
}

TEST_F(ServiceLauncherTest, NamesAProgramThatIsNotThere) {
  const auto launcher = ServiceLauncher::Start(Options({"scorer"}));
  EXPECT_THAT(std::string(launcher.status().message()),
              AllOf(HasSubstr("cannot start scorer"), HasSubstr("/bin/scorer")));
}

TEST_F(ServiceLauncherTest, StopsStartingWhenTheRunIsCancelled) {
  Program("scorer", "sleep 60\n");
  cancellation_.Cancel(absl::CancelledError("stopped by SIGINT"));
  EXPECT_EQ(ServiceLauncher::Start(Options({"scorer"})).status(), absl::CancelledError("stopped by SIGINT"));
}

TEST(EndOfLog, IsItsLastLines) {
  const ScratchFolder scratch;
  EXPECT_EQ(EndOfLog(scratch.Write("a", "1\n2\n3\n"), 2), "2\n3");
  EXPECT_EQ(EndOfLog(scratch.Write("b", "1\n2"), 5), "1\n2");
  EXPECT_EQ(EndOfLog(scratch.Write("c", ""), 5), "");
  EXPECT_EQ(EndOfLog(scratch.Write("d", "1\n2\n3\n"), 5, /*from=*/2), "2\n3");
  EXPECT_EQ(EndOfLog(scratch.path() + "/d", 5, /*from=*/100), "");
  EXPECT_EQ(EndOfLog(scratch.path() + "/none", 5), "");
}

}  // namespace
}  // namespace quartet

#include "core/service/process/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/files/files.h"

namespace quartet {
namespace {

std::string LogFile() {
  std::string path = ::testing::TempDir() + "/log_XXXXXX";
  close(mkstemp(path.data()));
  return path;
}

std::unique_ptr<ChildProcess> Shell(const std::string& script, ChildProcessOptions options = {}) {
  options.argv = {"/bin/sh", "-c", script};
  return ChildProcess::Start(options).value();
}

TEST(ChildProcess, ReportsHowItEnded) {
  EXPECT_TRUE(Shell("exit 0")->Wait(absl::Seconds(20))->ok());
  const ExitState code = *Shell("exit 3")->Wait(absl::Seconds(20));
  EXPECT_EQ(code.code, 3);
  EXPECT_EQ(code.Describe(), "exit code 3");
  const ExitState killed = *Shell("kill -9 $$")->Wait(absl::Seconds(20));
  EXPECT_EQ(killed.signal, SIGKILL);
  EXPECT_EQ(killed.Describe(), "killed by SIGKILL (signal 9): out of memory?");
}

TEST(ChildProcess, IsSeenToEndWhereItsParentWasToldToIgnoreThat) {
  signal(SIGCHLD, SIG_IGN);  // as a process has it whose own parent started it so
  const auto child = Shell("exit 3");
  const std::optional<ExitState> end = child->Wait(absl::Seconds(20));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code, 3);
}

TEST(ChildProcess, IgnoresAClosedTerminalWhereItsParentDoes) {
  const auto end_by_hang_up = [] { return *Shell("kill -HUP $$; exit 3")->Wait(absl::Seconds(20)); };
  signal(SIGHUP, SIG_DFL);
  EXPECT_EQ(end_by_hang_up().signal, SIGHUP);
  signal(SIGHUP, SIG_IGN);  // as nohup starts it
  EXPECT_EQ(end_by_hang_up().code, 3);
  signal(SIGHUP, SIG_DFL);
}

TEST(ChildProcess, AppendsItsOutputToTheLogAndHasItsEnvironment) {
  setenv("REMOVED", "yes", 1);
  ChildProcessOptions options;
  options.log_file = LogFile();
  options.environment = {{"ADDED", "1"}};
  options.removed_environment = {"REMOVED"};
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(Shell("echo \"$ADDED-$REMOVED-\"; echo err >&2", options)->Wait(absl::Seconds(20))->ok());
  }
  EXPECT_EQ(ReadFile(options.log_file).value(), "1--\nerr\n1--\nerr\n");
}

TEST(RunInShell, TellsWhatACommandSaidAndHowItEnded) {
  const auto result = RunInShell("echo one; echo two >&2; exit 3", absl::InfiniteDuration());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output, "one\ntwo");
  EXPECT_EQ(result->end.code, 3);
  EXPECT_FALSE(RunInShell("no_such_program_at_all", absl::InfiniteDuration()).value().end.ok());
  EXPECT_EQ(RunInShell("sleep 1000 & echo does not wait for it", absl::InfiniteDuration()).value().output,
            "does not wait for it");
}

TEST(RunInShell, WaitsNoLongerThanItIsTold) {
  const absl::Status late = RunInShell("sleep 1000; true", absl::Milliseconds(100)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(late.message().find("sleep 1000; true has not ended after 100ms"), std::string::npos) << late;
  const std::string started = LogFile();
  const absl::Status stopped = absl::CancelledError("stopped by SIGINT");
  EXPECT_EQ(RunInShell(absl::StrCat("echo yes >", started, "; sleep 1000; true"), absl::InfiniteDuration(),
                       [&] { return ReadFile(started).value() == "yes\n" ? stopped : absl::OkStatus(); })
                .status(),
            stopped);
}

TEST(ChildProcess, NamesAProgramThatCannotRun) {
  ChildProcessOptions options;
  options.argv = {"/nonexistent/program"};
  const absl::Status status = ChildProcess::Start(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/nonexistent/program"), std::string::npos) << status;
}

TEST(ChildProcess, HasItsParentsStreamAndEndsOnSigterm) {
  const std::string log = LogFile();
  ChildProcessOptions options;
  options.log_file = log;
  std::unique_ptr<ChildProcess> child = Shell("exec <&$QUARTET_PARENT_FD; echo up; read x; echo gone", options);
  while (ReadFile(log).value() != "up\n") ASSERT_FALSE(child->Wait(absl::Milliseconds(10)).has_value());
  EXPECT_EQ(child->Terminate(absl::Seconds(20)).signal, SIGTERM);
}

TEST(ChildProcess, SendsTheChildTheReasonToLeave) {
  ChildProcessOptions options;
  options.log_file = LogFile();
  std::unique_ptr<ChildProcess> child = Shell("exec <&$QUARTET_PARENT_FD; read x; echo reason: $x", options);
  child->SendReason("rank 1 is gone\n");
  EXPECT_TRUE(child->Wait(absl::Seconds(20))->ok());
  EXPECT_EQ(ReadFile(options.log_file).value(), "reason: rank 1 is gone\n");
  child->SendReason("nobody is there");
}

TEST(ChildProcess, IsKilledWhereItDoesNotListen) {
  const std::string log = LogFile();
  ChildProcessOptions options;
  options.log_file = log;
  std::unique_ptr<ChildProcess> child = Shell("trap '' TERM; echo up; while :; do sleep 0.05; done", options);
  while (ReadFile(log).value() != "up\n") ASSERT_FALSE(child->Wait(absl::Milliseconds(10)).has_value());
  EXPECT_EQ(child->Terminate(absl::Milliseconds(200)).signal, SIGKILL);
  EXPECT_EQ(kill(child->pid(), 0), -1);
}

// Whether what `start` starts is gone soon after the process that has started it was killed.
bool EndsWithItsParent(const std::function<void()>& start) {
  int open_while_it_runs[2], started[2];
  if (pipe2(started, O_CLOEXEC) != 0 || pipe(open_while_it_runs) != 0) return false;
  const pid_t parent = fork();
  if (parent == 0) {
    close(open_while_it_runs[0]);
    start();
    (void)!write(started[1], "", 1);
    for (;;) pause();
  }
  close(open_while_it_runs[1]);
  char byte;
  const bool begun = read(started[0], &byte, 1) == 1;
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  pollfd end = {open_while_it_runs[0], POLLIN, 0};
  const bool ended = poll(&end, 1, 20'000) == 1;
  for (const int fd : {open_while_it_runs[0], started[0], started[1]}) close(fd);
  return begun && ended;
}

TEST(ChildProcess, ThatDoesNotHeedItsParentIsKilledWithIt) {
  EXPECT_TRUE(EndsWithItsParent([] { Shell("exec sleep 100").release(); }));
  EXPECT_TRUE(EndsWithItsParent([] {
    const std::string started = LogFile();
    const auto run = [&] {
      (void)RunInShell(absl::StrCat("echo yes >", started, "; exec sleep 100"), absl::InfiniteDuration());
    };
    std::thread(run).detach();
    while (ReadFile(started).value() != "yes\n") absl::SleepFor(absl::Milliseconds(10));
  }));
}

TEST(ChildProcess, RunsOnUntilItEnds) {
  std::unique_ptr<ChildProcess> child = Shell("exec sleep 100");
  EXPECT_FALSE(child->Poll().has_value());
  EXPECT_FALSE(child->Wait(absl::Milliseconds(20)).has_value());
  child->Signal(SIGINT);
  EXPECT_EQ(child->Wait(absl::Seconds(20))->signal, SIGINT);
}

}  // namespace
}  // namespace quartet

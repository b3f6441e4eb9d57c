#include "core/service/process/piped_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/base/files/fd.h"
#include "core/base/files/files.h"
#include "core/base/testing/file_limit.h"
#include "core/base/testing/scratch_folder.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMostBytes = 64 << 20;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

std::unique_ptr<PipedProcess> Piped(const std::string& script, PipedProcessOptions options = {}) {
  options.argv = {"/bin/sh", "-c", script};
  return PipedProcess::Start(options).value();
}

TEST(PipedProcess, HasVariablesBesideThoseOfItsParent) {
  setenv("QUARTET_KEPT", "kept", 1);
  setenv("QUARTET_REPLACED", "old", 1);
  const std::string script = "echo $QUARTET_KEPT,$QUARTET_REPLACED,$QUARTET_NEW";
  const PipedProcessOptions options = {.environment = {{"QUARTET_REPLACED", "new"}, {"QUARTET_NEW", "a b=c"}}};
  EXPECT_EQ(Piped(script, options)->Finish("", kMostBytes, Soon(), {})->output, "kept,new,a b=c\n");
}

TEST(PipedProcess, HasThoseVariablesAloneWhereItHasNoneOfItsParent) {
  PipedProcessOptions options = {.no_environment = true, .environment = {{"QUARTET_NEW", "new"}}};
  options.argv = {"/usr/bin/env"};
  EXPECT_EQ(PipedProcess::Start(options).value()->Finish("", kMostBytes, Soon(), {})->output, "QUARTET_NEW=new\n");
}

// What a process, which says `ready` first, leaves in a file until it has ended.
std::string LeftBy(const std::string& script, bool waits_for_input) {
  const ScratchFolder scratch;
  const std::string file = scratch.path() + "/file";
  const auto process = Piped("FILE=" + file + "; " + script);
  EXPECT_EQ(*process->ReadLine(kMostBytes, Soon(), {}), "ready");
  process->End(absl::Seconds(60), waits_for_input);
  return ReadFile(file).value_or("nothing");
}

TEST(PipedProcess, ClearsUpBeforeItEnds) {
  const std::string on_term = "trap 'echo cleared > $FILE; exit' TERM; ";
  EXPECT_EQ(LeftBy(on_term + "echo ready; while :; do sleep 0.01; done", false), "cleared\n");
  EXPECT_EQ(LeftBy(on_term + "echo ready; while read line; do :; done; echo read > $FILE", true), "read\n");
  EXPECT_EQ(LeftBy("(" + on_term + "echo ready; while :; do sleep 0.01; done) & wait", false), "cleared\n")
      << "the shell has ended before";
  EXPECT_EQ(LeftBy(on_term + "yes ready & wait", false), "cleared\n") << "nobody else reads it";
}

TEST(PipedProcess, IsKilledWithAllOthers) {
  const auto process = Piped("trap '' TERM; echo ready; sleep 1000");
  EXPECT_EQ(*process->ReadLine(kMostBytes, Soon(), {}), "ready");
  PipedProcess::KillAll();
  EXPECT_THAT(std::string(process->ReadLine(kMostBytes, Soon(), {}).status().message()), HasSubstr("SIGKILL"));
}

// Forks a process, with a group of its own, that has the number `pid`, and waits for signals; false where this system
// or another process that begins just now does not let it.
bool ForkAs(pid_t pid) {
  for (int i = 0; i < 20; ++i) {
    std::ofstream("/proc/sys/kernel/ns_last_pid") << pid - 1;
    const pid_t child = fork();
    if (child == 0) {
      while (true) pause();
    }
    setpgid(child, child);
    if (child == pid) return true;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  return false;
}

TEST(PipedProcess, ThatHasEndedGivesItsNumberToOthersWhoAreNotKilled) {
  const auto finished = Piped("echo $$");
  const pid_t pid = atoi(finished->Finish("", kMostBytes, Soon(), {})->output.c_str());
  if (!ForkAs(pid)) GTEST_SKIP() << "no process can be given a number";
  PipedProcess::KillAll();
  kill(pid, SIGTERM);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

TEST(PipedProcess, IsKilledWithItsGroupThoughNoMoreFilesCanBeOpened) {
  const ScratchFolder scratch;
  const std::string pipe = scratch.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const Fd fd(open(pipe.c_str(), O_RDONLY | O_NONBLOCK));
  // The shell ends when asked, and what it has started does not.
  const auto process =
      Piped(absl::StrCat("(trap '' TERM; echo ready; while :; do sleep 0.01; done) 3> ", pipe, " & wait"));
  EXPECT_EQ(*process->ReadLine(kMostBytes, Soon(), {}), "ready");
  {
    const FileLimit none(0);
    process->End(absl::Milliseconds(50), /*waits_for_input=*/false);
  }
  pollfd open = {fd.get(), 0, 0};
  EXPECT_EQ(poll(&open, 1, 10000), 1) << "somebody has it open";
  EXPECT_TRUE(open.revents & POLLHUP);
}

TEST(PipedProcess, IsKilledWhereItDoesNotEndWhenAsked) {
  const auto process = Piped("trap '' TERM; echo ready; while :; do sleep 0.01; done");
  EXPECT_EQ(*process->ReadLine(kMostBytes, Soon(), {}), "ready");
  process->End(absl::Milliseconds(50), /*waits_for_input=*/true);
}

TEST(PipedProcess, WritesWhileItsLargeInputIsSent) {
  const std::string input(8 << 20, 'x');  // no pipe holds it
  const auto outcome = Piped("cat; cat; exit 3")->Finish(input, kMostBytes, Soon(), {});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->output, input);
  EXPECT_EQ(outcome->exit.code, 3);
}

TEST(PipedProcess, WritesMuchToItsErrorsWhileItsLargeInputIsSent) {
  const auto process = Piped("cat >&2; echo end >&2; echo done");
  const auto outcome = process->Finish(std::string(1 << 20, '\n'), kMostBytes, Soon(), {});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->output, "done\n");
  EXPECT_THAT(process->LastErrorLines(), HasSubstr("end"));
}

TEST(PipedProcess, HasItsLastWordsInAnErrorThatIsItsOwn) {
  const auto process = Piped("for i in 1 2 3 4 5 6 7; do echo $i >&2; done");
  ASSERT_TRUE(process->Finish("", kMostBytes, Soon(), {}).ok());
  EXPECT_EQ(process->WithLastWords(absl::AbortedError("it has ended")),
            absl::AbortedError("it has ended; it has written last:\n2\n3\n4\n5\n6\n7"));
  EXPECT_EQ(process->WithLastWords(absl::CancelledError("the call has ended")),
            absl::CancelledError("the call has ended"));
  EXPECT_EQ(process->WithLastWords(absl::OkStatus()), absl::OkStatus());
}

TEST(PipedProcess, NeedNotReadItsInput) {
  const auto outcome = Piped("echo done")->Finish(std::string(8 << 20, 'x'), kMostBytes, Soon(), {});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->output, "done\n");
}

TEST(PipedProcess, HasEndedThoughAnotherProcessHoldsItsOutput) {
  const std::string leaves = "sleep 1000 & ";
  const auto finished = Piped(leaves + "echo done; exit 3")->Finish("", kMostBytes, Soon(), {});
  ASSERT_TRUE(finished.ok()) << finished.status();
  EXPECT_EQ(finished->output, "done\n");
  EXPECT_EQ(finished->exit.code, 3);

  const auto asked = Piped(leaves + "read line; echo answer; exit 3");
  EXPECT_EQ(asked->Ask("question", kMostBytes, Soon(), {}).value(), "answer");
  const absl::Status ended = asked->ReadLine(kMostBytes, Soon(), {}).status();
  EXPECT_TRUE(absl::IsAborted(ended)) << ended;
  EXPECT_THAT(ended.message(), HasSubstr("exit code 3"));
}

TEST(PipedProcess, WritesNoMoreThanItMay) {
  const absl::Status much = Piped("head -c 100000 /dev/zero; sleep 1000")->Finish("", 1000, Soon(), {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(much)) << much;
}

TEST(PipedProcess, IsWaitedForUntilItsDeadlineOrAStop) {
  // Neither reads, nor ends.
  const std::string input(8 << 20, 'x');
  const auto late = Piped("sleep 1000")->Finish(input, kMostBytes, Deadline::In(absl::Milliseconds(100)), {});
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  std::stop_source stop;
  std::jthread stopper([&stop] { stop.request_stop(); });
  const auto stopped = Piped("sleep 1000")->Finish(input, kMostBytes, Soon(), stop.get_token());
  EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
}

}  // namespace
}  // namespace quartet

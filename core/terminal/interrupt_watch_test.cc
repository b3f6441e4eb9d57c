#include "core/terminal/interrupt_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace quartet {
namespace {

// Waits for the first signal's effect: one that comes while another waits is lost.
void Interrupt(int signal, Cancellation& cancellation) {
  kill(getpid(), signal);
  while (cancellation.status().ok()) absl::SleepFor(absl::Milliseconds(1));
}

void InterruptOnce() {
  Cancellation cancellation;
  InterruptWatch watch(&cancellation);
  Interrupt(SIGINT, cancellation);
  _exit(cancellation.status() == absl::CancelledError("stopped by SIGINT") ? 7 : 1);
}

// Where libraries have started threads a death test that forks alone must start none.
class InterruptWatchTest : public ::testing::Test {
 protected:
  InterruptWatchTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// A run that does not end however long it is waited for.
void InterruptTwice(int second) {
  Cancellation cancellation;
  InterruptWatch watch(&cancellation);
  Interrupt(SIGINT, cancellation);
  kill(getpid(), second);
  while (true) pause();
}

// A run that has promised to end in good order.
void Terminate(int signal, const char* name) {
  ::signal(SIGHUP, SIG_DFL);  // whatever has started the test
  Cancellation cancellation;
  cancellation.PromiseToEnd();
  InterruptWatch watch(&cancellation);
  kill(getpid(), signal);
  while (cancellation.ending().ok()) absl::SleepFor(absl::Milliseconds(1));
  if (!cancellation.status().ok()) _exit(1);
  if (watch.exit_code() != 128 + signal) _exit(3);
  Interrupt(SIGTERM, cancellation);
  _exit(cancellation.ending() == absl::CancelledError(absl::StrCat("stopped by ", name)) ? 7 : 2);
}

TEST_F(InterruptWatchTest, AsksARunThatHasPromisedToEndAndCancelsItAtTheSecondSignal) {
  const char* const said = "ends after the step under way, with a checkpoint; a second one ends it now";
  EXPECT_EXIT(Terminate(SIGINT, "SIGINT"), ::testing::ExitedWithCode(7), said);
  EXPECT_EXIT(Terminate(SIGTERM, "SIGTERM"), ::testing::ExitedWithCode(7), said);
  EXPECT_EXIT(Terminate(SIGHUP, "SIGHUP"), ::testing::ExitedWithCode(7), said);
}

// Of a terminal that is closed the kernel and the shell tell the run, one after the other.
void HangUpTwice() {
  signal(SIGHUP, SIG_DFL);
  Cancellation cancellation;
  InterruptWatch watch(&cancellation);
  Interrupt(SIGHUP, cancellation);
  kill(getpid(), SIGHUP);
  kill(getpid(), SIGINT);
  while (true) pause();
}

// As nohup starts it.
void HangUpWhatIgnoresIt() {
  signal(SIGHUP, SIG_IGN);
  Cancellation cancellation;
  InterruptWatch watch(&cancellation);
  kill(getpid(), SIGHUP);
  Interrupt(SIGTERM, cancellation);
  _exit(cancellation.status() == absl::CancelledError("stopped by SIGTERM") ? 7 : 1);
}

TEST_F(InterruptWatchTest, TakesAClosedTerminalForSigtermUnlessItIsToldToIgnoreIt) {
  EXPECT_EXIT(HangUpTwice(), ::testing::ExitedWithCode(130),
              "SIGHUP: the run .*ended at once by a second signal, SIGINT");
  EXPECT_EXIT(HangUpWhatIgnoresIt(), ::testing::ExitedWithCode(7), "");
}

TEST_F(InterruptWatchTest, CancelsTheRunAtTheFirstSignal) {
  EXPECT_EXIT(InterruptOnce(), ::testing::ExitedWithCode(7), "");
}

TEST_F(InterruptWatchTest, EndsTheProgramAtTheSecond) {
  EXPECT_EXIT(InterruptTwice(SIGINT), ::testing::ExitedWithCode(130), "ended at once by a second signal, SIGINT");
  EXPECT_EXIT(InterruptTwice(SIGTERM), ::testing::ExitedWithCode(143), "ended at once by a second signal, SIGTERM");
}

}  // namespace
}  // namespace quartet

#include "orchestrator/terminal/interrupt_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

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

// A run that does not end however long it is waited for.
void InterruptTwice(int second) {
  Cancellation cancellation;
  InterruptWatch watch(&cancellation);
  Interrupt(SIGINT, cancellation);
  kill(getpid(), second);
  while (true) pause();
}

TEST(InterruptWatch, CancelsTheRunAtTheFirstSignal) { EXPECT_EXIT(InterruptOnce(), ::testing::ExitedWithCode(7), ""); }

TEST(InterruptWatch, EndsTheProgramAtTheSecond) {
  EXPECT_EXIT(InterruptTwice(SIGINT), ::testing::ExitedWithCode(130), "ended at once by a second signal, SIGINT");
  EXPECT_EXIT(InterruptTwice(SIGTERM), ::testing::ExitedWithCode(130), "ended at once by a second signal, SIGTERM");
}

}  // namespace
}  // namespace quartet

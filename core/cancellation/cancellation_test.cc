#include "core/cancellation/cancellation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace quartet {
namespace {

TEST(Cancellation, RunsTheHooksOfWhatIsAliveAndKeepsTheFirstReason) {
  Cancellation cancellation;
  int alive = 0, gone = 0;
  Cancellation::Scope scope(&cancellation, [&alive] { ++alive; });
  {
    Cancellation::Scope ended(&cancellation, [&gone] { ++gone; });
  }
  EXPECT_TRUE(cancellation.status().ok());
  cancellation.Cancel(absl::UnavailableError("first"));
  cancellation.Cancel(absl::CancelledError("second"));
  EXPECT_EQ(cancellation.status(), absl::UnavailableError("first"));
  EXPECT_EQ(alive, 1);
  EXPECT_EQ(gone, 0);
}

TEST(Cancellation, RunsTheHookOfALateComerAtOnce) {
  Cancellation cancellation;
  cancellation.Cancel(absl::CancelledError("over"));
  bool ran = false;
  Cancellation::Scope scope(&cancellation, [&ran] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(Cancellation, GivesUpWhatMayWaitOnceTheRunIsAskedToEnd) {
  Cancellation cancellation;
  cancellation.PromiseToEnd();
  const absl::Status told = absl::CancelledError("told to end");
  int given_up = 0;
  {
    const Cancellation::GiveUpScope may_wait(&cancellation);
    const Cancellation::Scope scope(&cancellation, [&] { ++given_up; });
    EXPECT_TRUE(cancellation.status().ok());
    EXPECT_TRUE(cancellation.End(told));
    EXPECT_EQ(given_up, 1);
    EXPECT_EQ(cancellation.status(), told);
    const Cancellation::Scope late(&cancellation, [&] { ++given_up; });
    EXPECT_EQ(given_up, 2);
  }
  EXPECT_TRUE(cancellation.status().ok()) << "its checkpoint is not given up";
  const Cancellation::Scope checkpoint(&cancellation, [&] { ++given_up; });
  EXPECT_EQ(given_up, 2);
  EXPECT_EQ(cancellation.ending(), told);
}

TEST(Cancellation, NeverRunsAHookAfterItsScope) {
  for (int round = 0; round < 200; ++round) {
    Cancellation cancellation;
    std::thread canceller([&cancellation] { cancellation.Cancel(absl::CancelledError("over")); });
    {
      auto flag = std::make_unique<std::atomic<int>>(0);
      Cancellation::Scope scope(&cancellation, [raw = flag.get()] { ++*raw; });
      // The scope ends before the flag: a late hook would be a use after free.
    }
    canceller.join();
  }
}

}  // namespace
}  // namespace quartet

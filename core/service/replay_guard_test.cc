#include "core/service/replay_guard.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

namespace quartet {
namespace {

CallIdentity Identity(uint64_t sequence, uint64_t epoch = 1) {
  CallIdentity identity;
  identity.set_run_id("run");
  identity.set_step(sequence / 2);
  identity.set_sequence(sequence);
  identity.set_epoch(epoch);
  return identity;
}

TEST(ReplayGuard, AnswersARepeatWithTheStoredReply) {
  ReplayGuard guard;
  EXPECT_TRUE(guard.Begin(Identity(1), 7)->is_new);
  guard.Finish(Identity(1), "reply");
  absl::StatusOr<ReplayGuard::Admission> again = guard.Begin(Identity(1, 2), 7);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->is_new);
  EXPECT_EQ(again->reply, "reply");
  EXPECT_EQ(guard.last_applied()->sequence(), 1);
}

TEST(ReplayGuard, RefusesAnotherPayloadUnderTheSameIdentity) {
  ReplayGuard guard;
  ASSERT_TRUE(guard.Begin(Identity(1), 7).ok());
  EXPECT_EQ(guard.Begin(Identity(1), 8).status().code(), absl::StatusCode::kAlreadyExists);
  guard.Finish(Identity(1), "reply");
  EXPECT_EQ(guard.Begin(Identity(1), 8).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(ReplayGuard, RefusesAnOlderEpoch) {
  ReplayGuard guard;
  ASSERT_TRUE(guard.Begin(Identity(1, 5), 7).ok());
  guard.Finish(Identity(1, 5), "reply");
  EXPECT_EQ(guard.Begin(Identity(2, 4), 7).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(guard.Begin(Identity(1, 4), 7).status().code(), absl::StatusCode::kFailedPrecondition);
  CallIdentity other = Identity(1, 1);
  other.set_run_id("another run");
  EXPECT_TRUE(guard.Begin(other, 7).ok());
}

TEST(ReplayGuard, RefusesIncompleteIdentities) {
  ReplayGuard guard;
  EXPECT_EQ(guard.Begin(CallIdentity(), 7).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(guard.Begin(Identity(0), 7).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ReplayGuard, KeepsTheLastRepliesOnly) {
  ReplayGuard guard(2);
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(guard.Begin(Identity(i), 7)->is_new);
    guard.Finish(Identity(i), std::to_string(i));
  }
  EXPECT_EQ(guard.Begin(Identity(1), 7).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(guard.Begin(Identity(2), 7)->reply, "2");
  EXPECT_EQ(guard.Begin(Identity(3), 7)->reply, "3");
}

TEST(ReplayGuard, LetsAFailedCallBeDoneAgain) {
  ReplayGuard guard;
  ASSERT_TRUE(guard.Begin(Identity(1), 7)->is_new);
  guard.Abandon(Identity(1));
  EXPECT_FALSE(guard.last_applied().has_value());
  EXPECT_TRUE(guard.Begin(Identity(1), 8)->is_new);
}

TEST(ReplayGuard, MakesRepeatsOfARunningCallWaitForIt) {
  ReplayGuard guard;
  ASSERT_TRUE(guard.Begin(Identity(1), 7)->is_new);
  EXPECT_EQ(guard.Begin(Identity(1), 7, absl::Now()).status().code(), absl::StatusCode::kDeadlineExceeded);
  std::atomic<int> answered{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      absl::StatusOr<ReplayGuard::Admission> a = guard.Begin(Identity(1), 7);
      if (a.ok() && !a->is_new && a->reply == "reply") ++answered;
    });
  }
  guard.Finish(Identity(1), "reply");
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(answered, 4);
}

}  // namespace
}  // namespace quartet

#include "core/service/wire/replay_guard.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "proto/rollout.pb.h"

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
  EXPECT_EQ(guard.Begin(Identity(1), 7, Deadline::In(absl::ZeroDuration())).status().code(),
            absl::StatusCode::kDeadlineExceeded);
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

// The reply is any message with a number in it.
absl::Status Do(ReplayGuard& guard, const CallIdentity& identity, absl::Duration timeout, uint64_t* reply,
                const std::function<absl::StatusOr<uint64_t>()>& work) {
  CallIdentity message;
  absl::Status status =
      DoOnce(guard, identity, PayloadHash(SaveCheckpointRequest()), Deadline::In(timeout), &message, [&] {
        const absl::StatusOr<uint64_t> number = work();
        if (number.ok()) message.set_step(*number);
        return number.status();
      });
  *reply = message.step();
  return status;
}

TEST(DoOnce, ARepeatGetsTheReplyOfWorkThatOutlivesItsDeadline) {
  ReplayGuard guard;
  std::atomic<int> begun = 0;
  std::atomic<bool> may_end = false;
  const auto work = [&]() -> absl::StatusOr<uint64_t> {
    ++begun;
    while (!may_end) std::this_thread::yield();
    return 42;
  };
  uint64_t first_reply = 0, reply = 0;
  std::thread first([&] { EXPECT_TRUE(Do(guard, Identity(1), absl::ZeroDuration(), &first_reply, work).ok()); });
  while (begun == 0) std::this_thread::yield();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Do(guard, Identity(1), absl::Milliseconds(20), &reply, work)));
  std::thread patient([&] { EXPECT_TRUE(Do(guard, Identity(1), absl::Seconds(60), &reply, work).ok()); });
  may_end = true;
  first.join();
  patient.join();
  EXPECT_EQ(reply, 42u);
  EXPECT_EQ(first_reply, 42u);
  EXPECT_EQ(begun, 1);
}

TEST(DoOnce, WorkThatFailedMayBeAskedForAgain) {
  ReplayGuard guard;
  uint64_t reply = 0;
  EXPECT_TRUE(absl::IsResourceExhausted(
      Do(guard, Identity(1), absl::Seconds(60), &reply, [] { return absl::ResourceExhaustedError("no room"); })));
  EXPECT_TRUE(Do(guard, Identity(1), absl::Seconds(60), &reply, [] { return uint64_t{7}; }).ok());
  EXPECT_EQ(reply, 7u);
}

TEST(PayloadHash, IsOfTheCallAndEverythingButTheIdentity) {
  SaveCheckpointRequest save;
  save.set_checkpoint_id("step_1");
  const uint64_t hash = PayloadHash(save);
  *save.mutable_identity() = Identity(3);
  EXPECT_EQ(PayloadHash(save), hash);
  save.set_save_optimizer(true);
  EXPECT_NE(PayloadHash(save), hash);
  // Two calls without parameters are two calls.
  EXPECT_NE(PayloadHash(SleepRequest()), PayloadHash(WakeUpRequest()));
}

}  // namespace
}  // namespace quartet

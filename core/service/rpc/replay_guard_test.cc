#include "core/service/rpc/replay_guard.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

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

// The reply is any message with a number in it.
absl::StatusOr<uint64_t> Do(ReplayGuard& guard, const CallIdentity& identity,
                            const std::function<absl::StatusOr<uint64_t>()>& work) {
  CallIdentity message;
  const absl::Status status = guard.DoOnce(identity, &message, [&] {
    const absl::StatusOr<uint64_t> number = work();
    if (number.ok()) message.set_step(*number);
    return number.status();
  });
  if (!status.ok()) return status;
  return message.step();
}

TEST(ReplayGuard, AnswersARepeatOfTheLastCallWithItsReply) {
  ReplayGuard guard;
  EXPECT_FALSE(guard.last_applied().has_value());
  EXPECT_EQ(*Do(guard, Identity(1), [] { return 42; }), 42u);
  EXPECT_EQ(*Do(guard, Identity(1, /*epoch=*/2), [] { return 43; }), 42u);
  EXPECT_EQ(guard.last_applied()->sequence(), 1u);
}

TEST(ReplayGuard, RefusesAnotherCallUnderTheIdentityOfTheLast) {
  ReplayGuard guard;
  ASSERT_TRUE(Do(guard, Identity(1), [] { return 42; }).ok());
  SaveCheckpointReply reply;
  EXPECT_EQ(guard.DoOnce(Identity(1), &reply, [] { return absl::OkStatus(); }).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ReplayGuard, RefusesWhatLiesBeforeTheLastCall) {
  ReplayGuard guard;
  ASSERT_TRUE(Do(guard, Identity(1), [] { return 1; }).ok());
  ASSERT_TRUE(Do(guard, Identity(2), [] { return 2; }).ok());
  EXPECT_EQ(Do(guard, Identity(1), [] { return 1; }).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*Do(guard, Identity(2), [] { return 3; }), 2u);
}

TEST(ReplayGuard, RefusesAnOlderEpochOfTheSameRun) {
  ReplayGuard guard;
  ASSERT_TRUE(Do(guard, Identity(1, 5), [] { return 1; }).ok());
  EXPECT_EQ(Do(guard, Identity(2, 4), [] { return 1; }).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Do(guard, Identity(1, 4), [] { return 1; }).status().code(), absl::StatusCode::kFailedPrecondition);
  CallIdentity other = Identity(1, 1);
  other.set_run_id("another run");
  EXPECT_EQ(*Do(guard, other, [] { return 7; }), 7u);
}

TEST(ReplayGuard, RefusesAnOrchestratorThatAnotherHasFollowed) {
  const auto call = [](const std::string& run, uint64_t sequence, uint64_t epoch) {
    CallIdentity identity = Identity(sequence, epoch);
    identity.set_run_id(run);
    return identity;
  };
  ReplayGuard guard;
  ASSERT_TRUE(Do(guard, call("/runs/a@4", 7, 4), [] { return 1; }).ok());
  ASSERT_TRUE(Do(guard, call("/runs/a@5", 1, 5), [] { return 1; }).ok());
  EXPECT_EQ(Do(guard, call("/runs/a@4", 8, 4), [] { return 1; }).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Do(guard, call("/runs/b@4", 1, 4), [] { return 1; }).ok()) << "another run";
}

TEST(ReplayGuard, RefusesIncompleteIdentities) {
  ReplayGuard guard;
  EXPECT_EQ(Do(guard, CallIdentity(), [] { return 1; }).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Do(guard, Identity(0), [] { return 1; }).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ReplayGuard, LetsAFailedCallBeDoneAgain) {
  ReplayGuard guard;
  EXPECT_TRUE(absl::IsResourceExhausted(
      Do(guard, Identity(1), [] { return absl::ResourceExhaustedError("no room"); }).status()));
  EXPECT_FALSE(guard.last_applied().has_value());
  EXPECT_EQ(*Do(guard, Identity(1), [] { return 7; }), 7u);
}

TEST(ReplayGuard, LetsACallThatThrewBeDoneAgain) {
  ReplayGuard guard;
  const absl::Status thrown = Do(guard, Identity(1), []() -> absl::StatusOr<uint64_t> {
                                throw std::runtime_error("a thread cannot be had");
                              }).status();
  EXPECT_EQ(thrown, absl::InternalError("a thread cannot be had"));
  EXPECT_EQ(*Do(guard, Identity(1), [] { return 7; }), 7u);
}

TEST(ReplayGuard, RefusesTheRepeatOfACallThatIsUnderWayAndLetsOthersIn) {
  ReplayGuard guard;
  std::atomic<bool> begun = false, may_end = false;
  std::thread first([&] {
    EXPECT_EQ(*Do(guard, Identity(1),
                  [&] {
                    begun = true;
                    while (!may_end) std::this_thread::yield();
                    return 42;
                  }),
              42u);
  });
  while (!begun) std::this_thread::yield();
  EXPECT_TRUE(absl::IsUnavailable(Do(guard, Identity(1), [] { return 43; }).status()));
  EXPECT_EQ(*Do(guard, Identity(2), [] { return 2; }), 2u);
  may_end = true;
  first.join();
  EXPECT_EQ(guard.last_applied()->sequence(), 2u);
  EXPECT_EQ(*Do(guard, Identity(2), [] { return 3; }), 2u) << "the earlier call, which ended later, is not the last";
}

}  // namespace
}  // namespace quartet

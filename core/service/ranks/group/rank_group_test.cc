#include "core/service/ranks/group/rank_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/service/ranks/testing/rank_servers.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;
using Inputs = std::vector<RankInput>;
using Strings = std::vector<std::string>;

TEST(RankGroup, GivesEachRankItsPartAndJoinsTheAnswersInOrder) {
  for (int world_size : {1, 2, 3}) {
    Group group(world_size);
    for (const absl::Status& s : group.statuses) ASSERT_TRUE(s.ok()) << s;
    absl::StatusOr<std::vector<RankOutput>> outputs = group.Run("echo", "h");
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    ASSERT_EQ(outputs->size(), world_size);
    for (int r = 0; r < world_size; ++r) {
      EXPECT_EQ((*outputs)[r].summary, absl::StrCat(r, ":h"));
      EXPECT_EQ((*outputs)[r].items, std::vector<std::string>(r, absl::StrCat("item of ", r)));
    }
    EXPECT_EQ(group.groups[world_size - 1]->endpoints()[0], group.servers[0]->context().endpoint);
  }
}

TEST(RankGroup, RunsOverlappingCallsInOneOrderOnAllRanks) {
  Group group(3);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) failures += !group.Run(i % 3 == 0 ? "look" : "echo", absl::StrCat(t, "/", i)).ok();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(group.journal.Of(0).size(), 80);
  EXPECT_EQ(group.journal.Of(1), group.journal.Of(0));
  EXPECT_EQ(group.journal.Of(2), group.journal.Of(0));
}

TEST(RankGroup, NamesTheRankOfAnErrorAndGoesOnAfterALocalOne) {
  Group group(2);
  const absl::Status status = group.Run("look_fail", "one").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Contains(status, absl::StrCat("rank 1 (", group.servers[1]->context().endpoint, "): not me"))) << status;
  EXPECT_TRUE(Contains(group.Run("look_fail", "throw").status(), "boom"));
  EXPECT_TRUE(group.Run("echo", "h").ok());
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, GoesOnAfterARefusalByAllRanks) {
  Group group(2);
  EXPECT_EQ(group.Run("echo_fail", "all").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(group.Run("echo", "h").ok());
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, GoesOnAfterAnyErrorThatAllRanksAgreedOn) {
  Group group(3);
  EXPECT_EQ(group.Run("echo_fail", "agreed").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(group.Run("echo", "h").ok());
  EXPECT_TRUE(group.Broken().empty());
  // Every rank for itself may have run out of memory between two collectives.
  EXPECT_EQ(group.Run("echo_fail", "all full").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(group.Broken().count(0), 1u);
}

TEST(RankGroup, IsBrokenByAnErrorOfOneRankInACollective) {
  Group group(3);
  EXPECT_TRUE(Contains(group.Run("echo_fail", "one").status(), "not me"));
  EXPECT_EQ(group.Broken().count(0), 1u);
  EXPECT_EQ(group.Run("echo", "h").status().code(), absl::StatusCode::kUnavailable);
  for (const auto& [rank, why] : group.AllBroken()) EXPECT_THAT(why, HasSubstr("not me")) << rank;
  EXPECT_EQ(group.Broken().size(), 3u);
}

TEST(RankGroup, NamesTheRanksThatAreLateForACollectiveAndIsBroken) {
  Group group(3, {}, /*collective_timeout_seconds=*/1);
  const absl::Status status = group.Run("echo_hang", "", absl::Milliseconds(300)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Contains(status, "rank 2")) << status;
  EXPECT_FALSE(Contains(status, "rank 0")) << status;
  EXPECT_FALSE(Contains(status, "rank 1")) << status;
  EXPECT_EQ(group.AllBroken().size(), 3u);
}

// Else it would go on behind the back of whoever repeats the call.
TEST(RankGroup, WaitsBeyondTheDeadlineForWhatHasBegun) {
  for (const auto& [world_size, method] : {std::pair(1, "echo_sleep"), std::pair(1, "look_sleep"),
                                           std::pair(3, "look_sleep"), std::pair(3, "echo_sleep")}) {
    SCOPED_TRACE(absl::StrCat(world_size, method));
    Group group(world_size);
    const absl::Status status = group.Run(method, "late", absl::Milliseconds(300)).status();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(group.journal.Of(world_size - 1), Strings{"late"});
    EXPECT_TRUE(group.Run("echo", "h").ok());
    EXPECT_TRUE(group.Broken().empty());
  }
}

TEST(RankGroup, NeverBeginsWhatHasNotBegunByTheDeadline) {
  for (const int world_size : {1, 3}) {
    SCOPED_TRACE(world_size);
    Group group(world_size);
    std::thread before([&] { EXPECT_TRUE(group.Run("look_sleep", "first").ok()); });
    while (group.journal.slept == 0) absl::SleepFor(absl::Milliseconds(1));
    const absl::Status status = group.Run("look", "second", absl::Milliseconds(300)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Contains(status, absl::StrCat("rank ", world_size - 1))) << status;
    before.join();
    EXPECT_TRUE(group.Run("echo", "third").ok());
    EXPECT_EQ(group.journal.Of(world_size - 1), (Strings{"first", "third"}));
    EXPECT_TRUE(group.Broken().empty());
  }
}

// Runs something on the executor of one rank until it is released.
class Busy {
 public:
  Busy(Group& group, int rank)
      : thread_([&group, rank, this] {
          const absl::Status status = group.groups[rank]->RunHere([this] {
            begun_.set_value();
            end_.get_future().wait();
            return absl::OkStatus();
          });
          EXPECT_TRUE(status.ok()) << status;
        }) {
    begun_.get_future().wait();
  }
  void Release() {
    end_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> begun_, end_;
  std::thread thread_;
};

// A client that asks for little time, such as for log-probabilities behind a long update, harms nobody but itself.
TEST(RankGroup, BeginsNothingWhoseDeadlinePassesOnTheLeader) {
  Group group(3);
  Busy leader(group, 0);
  const absl::Status status = group.Run("echo", "late", absl::Milliseconds(300)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Contains(status, "it has not begun in time on rank 0")) << status;
  leader.Release();
  EXPECT_TRUE(group.Run("echo", "next").ok());
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(group.journal.Of(rank), Strings{"next"}) << rank;
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, EveryRankRunsWhatWasSentWheneverItComesToIt) {
  Group group(3);
  Busy follower(group, 1);
  std::thread call([&] { EXPECT_TRUE(group.Run("echo", "sent", absl::Milliseconds(300)).ok()); });
  while (group.journal.Of(2).empty()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(Contains(group.Run("echo", "late", absl::Milliseconds(400)).status(),
                       "echo: it has not begun in time: echo runs on rank 1"));
  follower.Release();
  call.join();
  EXPECT_TRUE(group.Run("echo", "next").ok());
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(group.journal.Of(rank), (Strings{"sent", "next"})) << rank;
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, StaysInStepWhicheverCallsComeTooLate) {
  Group group(3);
  std::atomic<int> done = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const absl::Status status =
            group.Run("echo", absl::StrCat(t, "/", i), absl::Milliseconds(1 + (7 * t + i) % 12)).status();
        done += status.ok();
        EXPECT_TRUE(status.ok() || absl::IsDeadlineExceeded(status)) << status;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(group.Run("echo", "last").ok());
  EXPECT_EQ(group.journal.Of(0).size(), done + 1);
  EXPECT_EQ(group.journal.Of(1), group.journal.Of(0));
  EXPECT_EQ(group.journal.Of(2), group.journal.Of(0));
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, RunsConcurrentCallsWhileTheExecutorIsBusy) {
  Group group(2);
  // Ends only after a concurrent call has: with one queue for both this would be a deadlock.
  const absl::Status status =
      group.groups[0]->RunHere([&] { return group.Run("beside", "", absl::Seconds(20)).status(); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(group.Run("echo", "h").ok());
}

// Else a service that is told to end would wait for what nobody needs any more.
TEST(RankGroup, EndsConcurrentCallsWhateverTheirHandlersDo) {
  for (const int world_size : {1, 2}) {
    SCOPED_TRACE(world_size);
    Group group(world_size);
    std::thread call([&] {
      // The leader's own word, or that of the other rank.
      const absl::Status status = group.Run("beside_hang", "").status();
      EXPECT_TRUE(absl::IsUnavailable(status) && Contains(status, "the toy stops: SIGTERM")) << status;
    });
    while (group.journal.slept == 0) absl::SleepFor(absl::Milliseconds(1));
    for (RankGroup* rank : group.groups) rank->EndCalls(absl::UnavailableError("the toy stops: SIGTERM"));
    call.join();
    EXPECT_FALSE(group.journal.released);
    EXPECT_EQ(group.Run("echo", "").status(), absl::UnavailableError("the toy stops: SIGTERM"));
  }
}

TEST(RankGroup, EventsGoBothWaysInOrderWhileCallsRun) {
  Group group(3);
  Strings expected;
  for (int i = 0; i < 50; ++i) {
    group.groups[0]->SendEvent(2, absl::StrCat(i));
    expected.push_back(absl::StrCat("2:", i));
    EXPECT_TRUE(i % 10 != 0 || group.Run("beside", "").ok());
  }
  while (group.journal.Of(0).size() < expected.size()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(group.journal.Of(0), expected);
  EXPECT_EQ(group.journal.ended, 0);
  group.servers[0]->Shutdown(absl::ZeroDuration(), "the test ends");
  EXPECT_EQ(group.journal.ended, 2);
  EXPECT_TRUE(group.Broken().empty());
}

// The follower answers from the thread that reads: it waits for the leader, which has much to say yet.
TEST(RankGroup, LargeEventsGoBothWaysAtOnce) {
  Group group(2);
  for (int i = 0; i < 32; ++i) group.groups[0]->SendEvent(1, std::string(1 << 20, 'x'));
  while (group.journal.Of(0).size() < 32) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_TRUE(group.Run("echo", "h").ok());
}

TEST(RankGroup, RefusesWhatDoesNotFitIntoAMessage) {
  Group group(2);
  Inputs inputs(2);
  inputs[1].items = {"small", std::string((256 << 20) + 1, 'x')};
  const absl::Status status = group.groups[0]->Run("echo", inputs, Deadline::Never()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Contains(status, "item 1 for rank 1")) << status;
  inputs[1].items = {std::string(9 << 20, 'x'), std::string(9 << 20, 'y')};
  EXPECT_TRUE(group.groups[0]->Run("echo", inputs, Deadline::Never()).ok());
}

// Neither its size nor what it quotes is a reason to lose it, or its mark.
TEST(RankGroup, PassesOnErrorsOfAnyTextAndLength) {
  Group group(2);
  const absl::Status longest = group.Run("look_fail", "text:" + std::string(50'000, 'x')).status();
  EXPECT_EQ(longest.code(), absl::StatusCode::kFailedPrecondition) << longest;
  EXPECT_TRUE(Contains(longest, "xxxx ... (the log of the rank has the rest)"));
  const absl::Status bytes = group.Run("look_fail", "text:\xFF\xC3").status();
  EXPECT_EQ(bytes.code(), absl::StatusCode::kFailedPrecondition) << bytes;
  EXPECT_TRUE(group.Run("echo", "h").ok());
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, NamesTheRanksThatDoNotCome) {
  RankContext context;
  context.world_size = 3;
  context.endpoint = "host:1";
  EXPECT_EQ(RankGroup::Create(context, {})->Start(nullptr, absl::Milliseconds(10)),
            absl::DeadlineExceededError("not all ranks came within 10ms: missing: rank 1, rank 2"));
}

TEST(RankGroup, IsLedByRankZeroOnly) {
  Group group(2);
  EXPECT_EQ(group.groups[1]->Run("echo", Inputs(2), Deadline::Never()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(group.groups[0]->Run("nonsense", Inputs(2), Deadline::Never()).ok());
  EXPECT_FALSE(group.groups[0]->Run("echo", Inputs(1), Deadline::Never()).ok());
}

TEST(RankGroup, RunsLocalWorkOnTheExecutorThread) {
  Group group(1);
  std::thread::id first, second;
  ASSERT_TRUE(group.groups[0]->RunHere([&] { return first = std::this_thread::get_id(), absl::OkStatus(); }).ok());
  ASSERT_TRUE(group.groups[0]
                  ->RunHere([&] {
                    return group.groups[0]->RunHere(
                        [&] { return second = std::this_thread::get_id(), absl::OkStatus(); });
                  })
                  .ok());
  EXPECT_EQ(first, second);
  EXPECT_NE(first, std::this_thread::get_id());
  EXPECT_EQ(group.groups[0]->RunHere([] { return absl::NotFoundError("x"); }).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace quartet

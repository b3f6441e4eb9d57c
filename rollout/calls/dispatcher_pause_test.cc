// What a pause holds, and what waits for its end.
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "rollout/calls/dispatcher.h"
#include "rollout/calls/testing/dispatcher_players.h"

namespace quartet {
namespace {

// Pauses one that has nothing in flight, and plays its only rank.
void PauseNow(Dispatcher& dispatcher) {
  std::thread rank([&] {
    FakeRank state;
    dispatcher.Answer(0, state.Apply(TakeFor(dispatcher, 0)));
  });
  EXPECT_TRUE(dispatcher.Pause(PauseRequest::KEEP, kStays).ok());
  rank.join();
}

TEST(DispatcherPause, CallsThatWaitForAPausesEndCountAsIfTheyHadBegun) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 4, .max_waiting = 3, .max_calls = 5});
  PauseNow(dispatcher);
  const auto most = BeginOne(dispatcher, 7);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(BeginOne(dispatcher, 1).status().message(),
            "the call asks for 1 sequences while 4 of 4 run and 3 wait: rollout.max_waiting = 3 is reached");
  (*most)->admission.reset();  // who gives up makes room
  std::vector<std::unique_ptr<Sunk>> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(*BeginOne(dispatcher, 1));
  const absl::Status refused = BeginOne(dispatcher, 1).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(), "5 calls wait or run: rollout.max_calls = 5 is reached");
  EXPECT_FALSE(calls[0]->begun);
  dispatcher.Resume();
  FakeRank rank;
  rank.Apply(TakeFor(dispatcher, 0));
  EXPECT_EQ(rank.left(), 5);
  while (rank.left() > 0) dispatcher.Answer(0, rank.EndOne());
  for (const auto& call : calls) {
    EXPECT_TRUE(call->begun);
    EXPECT_EQ(call->replies, 1);
    EXPECT_EQ(call->end, absl::OkStatus());
  }
}

TEST(DispatcherPause, WhetherACallMayBeginIsAskedWhenItBegins) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 4, .max_waiting = 3});
  bool may = false;
  const auto ask = [&] { return may ? absl::OkStatus() : absl::FailedPreconditionError("another version"); };
  EXPECT_EQ(BeginOne(dispatcher, 1, 1, ask).status().message(), "another version");
  PauseNow(dispatcher);
  auto refused = BeginOne(dispatcher, 1, 1, ask);
  ASSERT_TRUE(refused.ok()) << refused.status();
  dispatcher.Resume();
  EXPECT_FALSE((*refused)->begun);
  EXPECT_EQ((*refused)->end, absl::FailedPreconditionError("another version"));
  refused->reset();
  TakeFor(dispatcher, 0);  // the release
  PauseNow(dispatcher);
  const auto admitted = BeginOne(dispatcher, 1, 1, ask);
  may = true;
  dispatcher.Resume();
  EXPECT_TRUE((*admitted)->begun);
  EXPECT_FALSE((*admitted)->end.has_value());
  // Those that were refused, and left, take no room.
  EXPECT_TRUE(BeginOne(dispatcher, 6).ok());
}

TEST(DispatcherPause, AWaitForWhatIsInFlightBeginsNothingElse) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 4, .max_waiting = 8});
  FakeRank rank;
  const auto first = BeginOne(dispatcher, 2);
  rank.Apply(TakeFor(dispatcher, 0));
  std::thread keep([&] { EXPECT_EQ(*dispatcher.Pause(PauseRequest::KEEP, kStays), 2); });
  dispatcher.Answer(0, rank.Apply(TakeFor(dispatcher, 0)));
  keep.join();
  const auto later = BeginOne(dispatcher, 3);
  std::thread wait([&] { EXPECT_EQ(*dispatcher.Pause(PauseRequest::WAIT, kStays), 0); });
  rank.Apply(TakeFor(dispatcher, 0));
  EXPECT_FALSE(rank.held);
  EXPECT_EQ(rank.left(), 2);
  for (int i = 0; i < 2; ++i) dispatcher.Answer(0, rank.EndOne());
  dispatcher.Answer(0, rank.Apply(TakeFor(dispatcher, 0)));
  wait.join();
  EXPECT_EQ((*first)->end, absl::OkStatus());
  EXPECT_FALSE((*later)->begun);
  dispatcher.Fail(absl::UnavailableError("the service is stopping"));
  EXPECT_EQ((*later)->end, absl::UnavailableError("the service is stopping"));
}

TEST(DispatcherPause, APauseHoldsAllRanksAndCallsThatComeMeanwhileWait) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 10000});
  {
    BusyRank zero(dispatcher, 0);
    BusyRank one(dispatcher, 1);
    Caller before(dispatcher, HeaderOf(1), PromptsOf(3000));
    Until([&] { return before.replies() > 0; });
    const auto kept = dispatcher.Pause(PauseRequest::KEEP, kStays);
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_TRUE(dispatcher.paused());
    const int ended = zero.ended + one.ended;
    EXPECT_EQ(*kept, 3000 - ended);
    Caller during(dispatcher, HeaderOf(1), PromptsOf(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(zero.ended + one.ended, ended);
    EXPECT_EQ(during.replies(), 0);
    bool quiet = false;
    EXPECT_TRUE(dispatcher.Quietly(kStays, [&] { return quiet = true, absl::OkStatus(); }).ok());
    EXPECT_TRUE(quiet);
    EXPECT_TRUE(dispatcher.paused());

    // ABORT ends what is kept at once.
    EXPECT_EQ(*dispatcher.Pause(PauseRequest::ABORT, kStays), 0);
    EXPECT_TRUE(before.End().ok());
    EXPECT_EQ(before.replies(), 3000);
    EXPECT_EQ(before.aborted(), 3000 - ended);
    EXPECT_EQ(during.replies(), 0);
    dispatcher.Resume();
    EXPECT_TRUE(during.End().ok());
    EXPECT_EQ(during.replies(), 5);

    // WAIT lets it end.
    Caller last(dispatcher, HeaderOf(1), PromptsOf(100));
    Until([&] { return last.replies() > 0; });
    EXPECT_EQ(*dispatcher.Pause(PauseRequest::WAIT, kStays), 0);
    EXPECT_TRUE(last.End().ok());
    EXPECT_EQ(last.aborted(), 0);
    dispatcher.Resume();
    EXPECT_FALSE(dispatcher.paused());

    // Quietly keeps what is in flight, and lets it go on.
    Caller kept_on(dispatcher, HeaderOf(1), PromptsOf(3000));
    Until([&] { return kept_on.replies() > 0; });
    EXPECT_TRUE(dispatcher
                    .Quietly(kStays,
                             [&] {
                               const int before_it = zero.ended + one.ended;
                               std::this_thread::sleep_for(std::chrono::milliseconds(20));
                               EXPECT_EQ(zero.ended + one.ended, before_it);
                               return absl::OkStatus();
                             })
                    .ok());
    EXPECT_FALSE(dispatcher.paused());
    EXPECT_TRUE(kept_on.End().ok());
    EXPECT_EQ(kept_on.aborted(), 0);
    EXPECT_EQ(kept_on.replies(), 3000);
    dispatcher.Close();
  }
}

TEST(DispatcherPause, AnAbortEndsWhatAnotherPauseWaitsFor) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 4, .max_waiting = 10});
  Caller caller(dispatcher, HeaderOf(1), PromptsOf(2));
  FakeRank rank;
  rank.Apply(TakeFor(dispatcher, 0));
  std::thread waiting([&] { EXPECT_EQ(*dispatcher.Pause(PauseRequest::WAIT, kStays), 0); });
  Until([&] { return dispatcher.paused(); });
  dispatcher.AbortInFlight();
  dispatcher.Answer(0, rank.Apply(TakeFor(dispatcher, 0)));
  dispatcher.Answer(0, rank.Apply(TakeFor(dispatcher, 0)));  // the hold
  waiting.join();
  EXPECT_TRUE(caller.End().ok());
  EXPECT_EQ(caller.aborted(), 2);
}

TEST(DispatcherPause, APauseThatIsGivenUpChangesNothing) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 4, .max_waiting = 10});
  Caller caller(dispatcher, HeaderOf(1), PromptsOf(2));
  FakeRank rank;
  rank.Apply(TakeFor(dispatcher, 0));
  EXPECT_EQ(dispatcher.Pause(PauseRequest::WAIT, [] { return true; }).status().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(dispatcher.paused());
  while (rank.left() > 0) dispatcher.Answer(0, rank.EndOne());
  EXPECT_TRUE(caller.End().ok());
}

}  // namespace
}  // namespace quartet

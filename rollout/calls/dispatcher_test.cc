#include "rollout/calls/dispatcher.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rollout/calls/testing/dispatcher_players.h"

namespace quartet {
namespace {

TEST(Dispatcher, GivesEachRankAShareByLoadAndAllAnswersToTheirCalls) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 1000});
  std::vector<FakeRank> ranks(2);
  Caller first(dispatcher, HeaderOf(3), PromptsOf(10));
  for (int r = 0; r < 2; ++r) ranks[r].Apply(TakeFor(dispatcher, r));
  Caller second(dispatcher, HeaderOf(1, 40), PromptsOf(7));
  for (int r = 0; r < 2; ++r) ranks[r].Apply(TakeFor(dispatcher, r));
  EXPECT_EQ(ranks[0].left() + ranks[1].left(), 37);
  // No further apart than the largest piece.
  EXPECT_LE(std::abs(ranks[0].tokens - ranks[1].tokens), 45);
  EXPECT_FALSE(first.ended() || second.ended());
  for (int r = 0; r < 2; ++r) {
    while (ranks[r].left() > 0) dispatcher.Answer(r, ranks[r].EndOne());
  }
  EXPECT_TRUE(first.End().ok());
  EXPECT_TRUE(second.End().ok());
  EXPECT_EQ(first.replies(), 30);
  EXPECT_EQ(second.replies(), 7);
}

TEST(Dispatcher, CallsOfOneAffinityGoToOneEngineUnlessItHasMuchMoreToDo) {
  // Whose engines both get a batch with each call.
  Dispatcher dispatcher({.ranks = 2, .lockstep = true, .max_num_seqs = 100, .max_waiting = 1000});
  std::vector<FakeRank> ranks(2);
  std::vector<std::unique_ptr<Caller>> callers;
  const auto engine_of = [&](uint64_t affinity) {
    GenerateHeader header = HeaderOf(1);
    header.set_affinity(affinity);
    callers.push_back(std::make_unique<Caller>(dispatcher, header, PromptsOf(1)));
    const int64_t before = ranks[0].left();
    std::vector<Dispatcher::WorkQueue> works;
    EXPECT_TRUE(dispatcher.Take(0, &works));
    for (int r = 0; r < 2; ++r) ranks[r].Apply(works[r]);
    return ranks[0].left() > before ? 0 : 1;
  };
  for (const uint64_t affinity : {3, 4, 3, 3, 4}) EXPECT_EQ(engine_of(affinity), affinity % 2);
  std::vector<int> engines;
  for (int i = 0; i < 20; ++i) engines.push_back(engine_of(3));
  EXPECT_GT(std::ranges::count(engines, 0), 2);
  EXPECT_GT(std::ranges::count(engines, 1), 10);
  EXPECT_EQ(engine_of(0), ranks[0].tokens < ranks[1].tokens ? 0 : 1);
  for (int r = 0; r < 2; ++r) {
    while (ranks[r].left() > 0) dispatcher.Answer(r, ranks[r].EndOne());
  }
  for (const auto& caller : callers) EXPECT_TRUE(caller->End().ok());
}

TEST(Dispatcher, ACallerThatLeavesIsCancelledOnItsRanksAndItsLoadIsGone) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 0});
  Caller leaver(dispatcher, HeaderOf(1), PromptsOf(8));
  std::vector<FakeRank> ranks(2);
  for (int r = 0; r < 2; ++r) ranks[r].Apply(TakeFor(dispatcher, r));
  EXPECT_EQ(ranks[0].left() + ranks[1].left(), 8);
  leaver.Leave();
  EXPECT_EQ(leaver.End().code(), absl::StatusCode::kCancelled);
  for (int r = 0; r < 2; ++r) {
    const Dispatcher::WorkQueue works = TakeFor(dispatcher, r);
    EXPECT_FALSE(works.back().in_flight());
    ranks[r].Apply(works);
    EXPECT_EQ(ranks[r].cancelled, 1);
  }
  // Late answers of the call do no harm, and there is room for as many again.
  RankEvents late;
  late.add_events()->set_call(1);
  late.mutable_events(0)->mutable_sequence();
  dispatcher.Answer(0, late);
  Caller next(dispatcher, HeaderOf(1), PromptsOf(8));
  for (int r = 0; r < 2; ++r) {
    ranks[r].Apply(TakeFor(dispatcher, r));
    while (ranks[r].left() > 0) dispatcher.Answer(r, ranks[r].EndOne());
  }
  EXPECT_TRUE(next.End().ok());
}

TEST(Dispatcher, RefusesWhatWouldWaitBehindTooMany) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 3});
  const auto most = BeginOne(dispatcher, 11);
  ASSERT_TRUE(most.ok()) << most.status();
  for (const int prompts : {1, 11}) {
    const absl::Status refused = BeginOne(dispatcher, prompts).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(refused.message(), absl::StrCat("the call asks for ", prompts,
                                              " sequences while 8 of 8 run and 3 wait: rollout.max_waiting = 3 "
                                              "is reached"));
  }
}

TEST(Dispatcher, NothingWaitsWhereNothingMay) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 0});
  const auto most = BeginOne(dispatcher, 7);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(BeginOne(dispatcher, 2).status().message(),
            "the call asks for 2 sequences while 7 of 8 run and 0 wait: rollout.max_waiting = 0 is reached");
  EXPECT_TRUE(BeginOne(dispatcher, 1).ok());
}

// Small calls take each place that becomes free, so that there is never room for a large one's last sequence.
TEST(Dispatcher, ACallOfManySequencesIsAdmittedWheneverOneOfFewIs) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 3});
  EXPECT_EQ(dispatcher.max_sequences(), 11);
  std::deque<std::unique_ptr<Sunk>> small;
  const auto fill = [&] {
    for (;;) {
      auto call = BeginOne(dispatcher, 1);
      if (!call.ok()) return;
      small.push_back(*std::move(call));
    }
  };
  fill();
  EXPECT_EQ(small.size(), 11u);
  EXPECT_FALSE(BeginOne(dispatcher, 2, 5).ok());
  small.pop_front();
  auto large = BeginOne(dispatcher, 2, 5);
  ASSERT_TRUE(large.ok()) << large.status();
  // What it has beyond the line must run before anything else is admitted.
  for (int i = 0; i < 10; ++i) {
    fill();
    EXPECT_EQ(small.size(), 10u - i);
    if (i < 9) small.pop_front();
  }
  // Its end makes room for as many as if it had not been.
  large->reset();
  fill();
  EXPECT_EQ(small.size(), 11u);
}

TEST(Dispatcher, KeepsPlacesForTheRunWhateverItsGuestsAskFor) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 6, .max_calls = 8});
  const auto guest = [&](int prompts) { return BeginOne(dispatcher, prompts, 1, kMay, Dispatcher::Origin::kGuest); };
  EXPECT_EQ(guest(12).status().message(),
            "the request asks for 12 sequences while those of other requests are 0, until their answers are fetched: "
            "beside 8 that can run, half of rollout.max_waiting = 6 is kept for the run");
  std::vector<std::unique_ptr<Sunk>> guests;
  for (const int prompts : {6, 1, 1, 1, 1, 1}) guests.push_back(guest(prompts).value());
  EXPECT_EQ(guest(0).status().message(),
            "6 requests wait or run; of rollout.max_calls = 8 a quarter is kept for the run");
  const auto run = BeginOne(dispatcher, 14);
  EXPECT_TRUE(run.ok()) << run.status();
  guests.pop_back();
  EXPECT_EQ(guest(1).status().code(), absl::StatusCode::kResourceExhausted) << "the run's own fill what is left";
}

TEST(Dispatcher, AGuestsSequenceCountsUntilItsReplyIsFetched) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 4, .max_waiting = 0});
  FakeRank rank;
  const auto guest = [&](int prompts) { return BeginOne(dispatcher, prompts, 1, kMay, Dispatcher::Origin::kGuest); };
  const auto first = guest(4);
  ASSERT_TRUE(first.ok()) << first.status();
  rank.Apply(TakeFor(dispatcher, 0));
  while (rank.left() > 0) dispatcher.Answer(0, rank.EndOne());
  EXPECT_EQ((*first)->end, absl::OkStatus());
  EXPECT_EQ(guest(1).status().message(),
            "the request asks for 1 sequences while those of other requests are 4, until their answers are fetched: "
            "beside 4 that can run, half of rollout.max_waiting = 0 is kept for the run");
  EXPECT_TRUE(BeginOne(dispatcher, 1).ok()) << "the run's count otherwise";
  (*first)->admission->Fetched(2);
  EXPECT_FALSE(guest(3).ok());
  EXPECT_TRUE(guest(2).ok());
  (*first)->admission.reset();
  EXPECT_TRUE(guest(4).ok());
}

TEST(Dispatcher, AStreamThatIsReadHoldsWhatWasReturnedLast) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 4, .max_waiting = 0});
  FakeRank rank;
  for (const bool streams : {false, true}) {
    GenerateHeader header = HeaderOf(1);
    header.set_stream_tokens(streams);
    const std::stop_source gone;
    auto call =
        BlockingCall::Begin(dispatcher, header, PromptsOf(4), kMay, gone.get_token(), Dispatcher::Origin::kGuest);
    ASSERT_TRUE(call.ok()) << call.status();
    rank.Apply(TakeFor(dispatcher, 0));
    const auto fits = [&](int prompts) {
      return BeginOne(dispatcher, prompts, 1, kMay, Dispatcher::Origin::kGuest).ok();
    };
    for (int i = 0; i < 2; ++i) {
      dispatcher.Answer(0, rank.EndOne());
      ASSERT_EQ((*call)->Next()->size(), 1u);
      EXPECT_FALSE(fits(i + 1));
      EXPECT_EQ(fits(1), streams && i == 1);
    }
    call->reset();
    EXPECT_TRUE(fits(4));
    rank.Apply(TakeFor(dispatcher, 0));
  }
}

TEST(Dispatcher, RepliesThatWaitForTheirGuestsStandInABudget) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 100, .max_guest_reply_bytes = 20'000});
  const auto begin = [&](Dispatcher::Origin origin) { return BeginOne(dispatcher, 20, 1, kMay, origin).value(); };
  const auto answer = [&](uint64_t call, int tokens) {
    RankEvents events;
    RankEvent& event = *events.add_events();
    event.set_call(call);
    for (int t = 0; t < tokens; ++t) event.mutable_sequence()->mutable_tokens()->add_ids(t);
    dispatcher.Answer(0, std::move(events));
  };
  // Calls 1 to 3.
  const auto modest = begin(Dispatcher::Origin::kGuest), greedy = begin(Dispatcher::Origin::kGuest);
  const auto run = begin(Dispatcher::Origin::kRun);
  for (int i = 0; i < 10; ++i) answer(/*call=*/3, 1000);
  answer(/*call=*/1, 1000);
  for (int i = 0; i < 10 && !greedy->end.has_value(); ++i) answer(/*call=*/2, 1000);
  EXPECT_GE(greedy->replies, 2);
  ASSERT_TRUE(greedy->end.has_value());
  EXPECT_EQ(greedy->end->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(greedy->end->message().find("rollout.http.max_bodies_bytes = 20000 bytes"), std::string::npos);
  EXPECT_FALSE(modest->end.has_value() || run->end.has_value());
  // Its room is free; who fetches goes on without end.
  for (int i = 0; i < 15; ++i) {
    answer(/*call=*/1, 1000);
    modest->admission->Fetched(1);
  }
  EXPECT_EQ(modest->replies, 16);
  EXPECT_EQ(run->replies, 10);
  // What is made of them counts like them, also of a call of which all has come.
  EXPECT_TRUE(modest->admission->Hold(5'000).ok());
  EXPECT_EQ(modest->admission->Hold(15'000).code(), absl::StatusCode::kResourceExhausted);
  modest->admission.reset();
  const auto next = begin(Dispatcher::Origin::kGuest);
  EXPECT_TRUE(next->admission->Hold(20'000).ok());
  EXPECT_FALSE(next->end.has_value());
}

TEST(Dispatcher, WhatIsMadeOfStreamedRepliesIsHeldUntilTheyAreFetched) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 100, .max_guest_reply_bytes = 20'000});
  FakeRank rank;
  for (const bool streams : {true, false}) {
    GenerateHeader header = HeaderOf(1);
    header.set_stream_tokens(streams);
    const std::stop_source gone;
    const auto call =
        BlockingCall::Begin(dispatcher, header, PromptsOf(4), kMay, gone.get_token(), Dispatcher::Origin::kGuest)
            .value();
    rank.Apply(TakeFor(dispatcher, 0));
    for (int i = 0; i < (streams ? 3 : 2); ++i) {
      dispatcher.Answer(0, rank.EndOne());
      ASSERT_EQ(call->Next()->size(), 1u);
      EXPECT_EQ(call->Hold(15'000).ok(), streams || i == 0);
    }
    rank.sequences.clear();
  }
}

// Else whoever reads nothing would keep others out.
TEST(Dispatcher, AStreamThatIsWholeAndNotFetchedIsGivenUpForOthers) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 100, .max_guest_reply_bytes = 20'000});
  FakeRank rank;
  for (const bool streams : {true, false}) {
    GenerateHeader header = HeaderOf(1);
    header.set_stream_tokens(streams);
    const std::stop_source gone;
    const auto begin = [&](const GenerateHeader& of) {
      return BlockingCall::Begin(dispatcher, of, PromptsOf(1), kMay, gone.get_token(), Dispatcher::Origin::kGuest)
          .value();
    };
    const auto idle = begin(header);
    rank.Apply(TakeFor(dispatcher, 0));
    ASSERT_TRUE(idle->Hold(15'000).ok());
    dispatcher.Answer(0, rank.EndOne());
    const auto reader = begin(HeaderOf(1));
    rank.Apply(TakeFor(dispatcher, 0));
    // What is sent as a whole is on its way, and cannot be taken back.
    EXPECT_EQ(reader->Hold(10'000).ok(), streams);
    EXPECT_EQ(idle->Next().status().code(), streams ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kOk);
    rank.EndOne();
  }
}

TEST(Dispatcher, RefusesACallThatCouldNotEvenWaitAlone) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 3});
  const absl::Status refused = BeginOne(dispatcher, 4, 3).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "the call asks for 12 sequences; at most 11 are allowed: the 8 that can run and rollout.max_waiting = 3");
}

// What goes to a rank must fit into a message of its lane.
TEST(Dispatcher, CutsTheWorkOfACallIntoMessagesOfBoundedSize) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 8});
  const Caller caller(dispatcher, HeaderOf(1), PromptsOf(5, 60'000));
  const Dispatcher::WorkQueue works = TakeFor(dispatcher, 0);
  EXPECT_EQ(works.size(), 5u);
  for (const RankWork& work : works) EXPECT_EQ(work.parts(0).tasks_size(), 1);
}

TEST(Dispatcher, ACallOfNothingEndsAtOnce) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 4});
  const auto call = BeginOne(dispatcher, 0);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ((*call)->end, absl::OkStatus());
}

TEST(Dispatcher, AFailureOfOneRankEndsTheCallsThatItServes) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 100});
  Caller wide(dispatcher, HeaderOf(1), PromptsOf(8));
  for (int r = 0; r < 2; ++r) TakeFor(dispatcher, r);
  RankEvents events;
  RankError& error = *events.add_events()->mutable_error();
  error.set_code(static_cast<int>(absl::StatusCode::kInternal));
  error.set_message("generation failed: out of luck");
  dispatcher.Answer(1, events);
  const absl::Status status = wide.End();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "rank 1: generation failed: out of luck");
}

// Its client has yet to read that it failed.
TEST(Dispatcher, ACallThatFailedHoldsUpNothing) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 0});
  const auto failed = BeginOne(dispatcher, 8);
  ASSERT_TRUE(failed.ok()) << failed.status();
  std::vector<FakeRank> ranks(2);
  for (int r = 0; r < 2; ++r) ranks[r].Apply(TakeFor(dispatcher, r));
  RankEvents events;
  events.add_events()->set_call(1);
  events.mutable_events(0)->mutable_error()->set_message("no room");
  events.mutable_events(0)->mutable_error()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  dispatcher.Answer(1, events);
  EXPECT_EQ((*failed)->end, absl::ResourceExhaustedError("rank 1: no room"));
  for (int r = 0; r < 2; ++r) {
    ranks[r].Apply(TakeFor(dispatcher, r));
    EXPECT_EQ(ranks[r].left(), 0) << "the other rank need not go on with it either";
  }
  std::thread pause([&] { EXPECT_EQ(*dispatcher.Pause(PauseRequest::WAIT, kStays), 0); });
  for (int r = 0; r < 2; ++r) dispatcher.Answer(r, ranks[r].Apply(TakeFor(dispatcher, r)));
  pause.join();
  dispatcher.Resume();
  EXPECT_TRUE(BeginOne(dispatcher, 8).ok()) << "there is room again";
}

TEST(Dispatcher, EnginesThatStepTogetherGetEquallyManyBatches) {
  Dispatcher dispatcher({.ranks = 3, .lockstep = true, .max_num_seqs = 4, .max_waiting = 100});
  EXPECT_EQ(dispatcher.groups(), 1);
  std::vector<FakeRank> ranks(3);
  std::vector<Dispatcher::WorkQueue> works;
  const auto take = [&](bool in_flight) {
    ASSERT_TRUE(dispatcher.Take(0, &works));
    for (int r = 0; r < 3; ++r) {
      ASSERT_FALSE(works[r].empty());
      for (const RankWork& work : works[r]) EXPECT_EQ(work.complete(), &work == &works[r].back());
      EXPECT_EQ(works[r].back().in_flight(), in_flight);
      dispatcher.Answer(r, ranks[r].Apply(works[r]));
    }
  };
  Caller caller(dispatcher, HeaderOf(1), PromptsOf(1));
  take(/*in_flight=*/true);
  EXPECT_EQ(ranks[0].left() + ranks[1].left() + ranks[2].left(), 1);
  std::thread pause([&] { EXPECT_EQ(*dispatcher.Pause(PauseRequest::KEEP, kStays), 1); });
  take(/*in_flight=*/true);
  pause.join();
  for (const FakeRank& rank : ranks) EXPECT_TRUE(rank.held);
  dispatcher.Resume();
  take(/*in_flight=*/true);
  for (const FakeRank& rank : ranks) EXPECT_FALSE(rank.held);
  for (int r = 0; r < 3; ++r) dispatcher.Answer(r, ranks[r].EndOne());
  EXPECT_TRUE(caller.End().ok());
  dispatcher.Close();
  EXPECT_FALSE(dispatcher.Take(0, &works));
  for (const Dispatcher::WorkQueue& last : works) EXPECT_TRUE(last.back().complete() && last.back().last());
}

TEST(Dispatcher, RanksThatAreOneEngineShareItsWorkAndTheFirstAnswersForThem) {
  Dispatcher dispatcher({.ranks = 4, .ranks_per_engine = 2, .max_num_seqs = 4, .max_waiting = 2});
  EXPECT_EQ(dispatcher.engines(), 2);
  EXPECT_EQ(dispatcher.groups(), 2);
  Caller too_many(dispatcher, HeaderOf(1), PromptsOf(11));
  EXPECT_EQ(too_many.End().code(), absl::StatusCode::kResourceExhausted);
  Caller caller(dispatcher, HeaderOf(2), PromptsOf(5));
  std::vector<FakeRank> ranks(4);
  for (int engine = 0; engine < 2; ++engine) {
    const Dispatcher::WorkQueue works = TakeFor(dispatcher, engine);
    for (int r = 0; r < 4; ++r) {
      if (dispatcher.engine_of(r) == engine) ranks[r].Apply(works);
    }
  }
  EXPECT_EQ(ranks[0].left(), ranks[1].left());
  EXPECT_EQ(ranks[2].left(), ranks[3].left());
  EXPECT_EQ(ranks[0].left() + ranks[2].left(), 10);
  EXPECT_LE(std::abs(ranks[0].tokens - ranks[2].tokens), 25);
  // Nothing is quiet before the last of them holds.
  std::atomic<bool> paused = false;
  std::thread pause([&] {
    EXPECT_EQ(*dispatcher.Pause(PauseRequest::KEEP, kStays), 10);
    paused = true;
  });
  const std::vector<Dispatcher::WorkQueue> holds = {TakeFor(dispatcher, 0), TakeFor(dispatcher, 1)};
  for (int r = 0; r < 3; ++r) dispatcher.Answer(r, ranks[r].Apply(holds[dispatcher.engine_of(r)]));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(paused);
  dispatcher.Answer(3, ranks[3].Apply(holds[1]));
  pause.join();
  dispatcher.Resume();
  // An engine that has answered everything is not what a call that goes on waits for.
  while (ranks[0].left() > 0) dispatcher.Answer(0, ranks[0].EndOne());
  RankEvents events;
  events.add_events()->mutable_error()->set_message("the second of them failed");
  events.mutable_events(0)->mutable_error()->set_code(static_cast<int>(absl::StatusCode::kInternal));
  dispatcher.Answer(1, events);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(caller.ended());
  dispatcher.Answer(3, events);
  EXPECT_EQ(caller.End().message(), "rank 3: the second of them failed");
  dispatcher.Close();
}

}  // namespace
}  // namespace quartet

#include "rollout/dispatcher.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rollout/blocking_call.h"

namespace quartet {
namespace {

GenerateHeader HeaderOf(int32_t samples, int32_t tokens = 10) {
  GenerateHeader header;
  header.mutable_sampling()->set_n_samples(samples);
  header.mutable_sampling()->set_max_new_tokens(tokens);
  return header;
}

std::vector<Prompt> PromptsOf(int count, int length = 5) {
  std::vector<Prompt> prompts(count);
  for (int i = 0; i < count; ++i) {
    prompts[i].set_index(i);
    for (int t = 0; t < length; ++t) prompts[i].add_ids(t);
  }
  return prompts;
}

const std::function<absl::Status()> kMay = [] { return absl::OkStatus(); };

// A call on a thread of its own.
class Caller {
 public:
  Caller(Dispatcher& dispatcher, GenerateHeader header, std::vector<Prompt> prompts) {
    thread_ = std::thread([this, &dispatcher, header = std::move(header), prompts = std::move(prompts)] {
      status_ = Call(dispatcher, header, prompts);
      ended_ = true;
    });
  }
  ~Caller() {
    Leave();
    if (thread_.joinable()) thread_.join();
  }
  void Leave() { gone_.request_stop(); }
  absl::Status End() {
    thread_.join();
    return status_;
  }
  int replies() const { return replies_; }
  int aborted() const { return aborted_; }
  bool ended() const { return ended_; }

 private:
  absl::Status Call(Dispatcher& dispatcher, const GenerateHeader& header, const std::vector<Prompt>& prompts) {
    const auto call = BlockingCall::Begin(dispatcher, header, prompts, kMay, gone_.get_token());
    if (!call.ok()) return call.status();
    for (;;) {
      const auto replies = (*call)->Next();
      if (!replies.ok() || replies->empty()) return replies.status();
      for (const GenerateReply& reply : *replies) {
        ++replies_;
        aborted_ += reply.sequence().finish_reason() == GeneratedSequence::ABORTED;
      }
    }
  }

  std::stop_source gone_;
  std::atomic<bool> ended_ = false;
  std::atomic<int> replies_ = 0;
  std::atomic<int> aborted_ = 0;
  absl::Status status_;
  std::thread thread_;
};

// Plays one rank: remembers its sequences by call, and ends them when told.
struct FakeRank {
  std::map<uint64_t, int64_t> sequences;
  int64_t tokens = 0;  // of all prompts that came
  bool held = false;
  int cancelled = 0;

  RankEvents Apply(const Dispatcher::Works& works) {
    RankEvents events;
    for (const RankWork& work : works) {
      for (const CallPart& part : work.parts()) {
        for (const GenerateTask& task : part.tasks()) {
          sequences[part.call()] += task.samples();
          tokens += task.prompt().ids_size() + int64_t{task.samples()} * part.sampling().max_new_tokens();
        }
      }
      for (const uint64_t call : work.cancel()) cancelled += sequences.erase(call) > 0;
      for (const uint64_t call : work.abort()) {
        for (; sequences[call] > 0; --sequences[call]) {
          RankEvent& event = *events.add_events();
          event.set_call(call);
          event.mutable_sequence()->set_finish_reason(GeneratedSequence::ABORTED);
        }
      }
      if (work.hold() > 0) {
        held = true;
        events.add_events()->set_held(work.hold());
      }
      if (work.release()) held = false;
    }
    return events;
  }
  RankEvents EndOne() {
    RankEvents events;
    for (auto& [call, left] : sequences) {
      if (left == 0) continue;
      --left;
      RankEvent& event = *events.add_events();
      event.set_call(call);
      event.mutable_sequence()->set_finish_reason(GeneratedSequence::STOP);
      break;
    }
    return events;
  }
  int64_t left() const {
    int64_t sum = 0;
    for (const auto& [call, left] : sequences) sum += left;
    return sum;
  }
};

// A rank that is an engine: takes its work, and ends one sequence after another, on threads of its own until Close.
class BusyRank {
 public:
  BusyRank(Dispatcher& dispatcher, int rank) {
    taker_ = std::thread([this, &dispatcher, rank] {
      std::vector<Dispatcher::Works> works;
      while (dispatcher.Take(rank, &works)) {
        const std::lock_guard lock(mutex_);
        dispatcher.Answer(rank, state_.Apply(works[rank]));
      }
      closed_ = true;
    });
    worker_ = std::thread([this, &dispatcher, rank] {
      for (; !closed_; std::this_thread::yield()) {
        const std::lock_guard lock(mutex_);
        if (state_.held) continue;
        RankEvents events = state_.EndOne();
        ended += events.events_size();
        dispatcher.Answer(rank, std::move(events));
      }
    });
  }
  ~BusyRank() {
    taker_.join();
    worker_.join();
  }
  std::atomic<int> ended = 0;

 private:
  std::mutex mutex_;
  FakeRank state_;  // guarded by mutex_
  std::atomic<bool> closed_ = false;
  std::thread taker_, worker_;
};

// The work for an engine that steps by itself.
Dispatcher::Works TakeFor(Dispatcher& dispatcher, int engine) {
  std::vector<Dispatcher::Works> works;
  EXPECT_TRUE(dispatcher.Take(engine, &works));
  for (int other = 0; other < dispatcher.engines(); ++other) EXPECT_EQ(works[other].empty(), other != engine);
  return works[engine];
}

void Until(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::yield();
}

const std::function<bool()> kStays = [] { return false; };

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

TEST(Dispatcher, ACallerThatLeavesIsCancelledOnItsRanksAndItsLoadIsGone) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 0});
  Caller leaver(dispatcher, HeaderOf(1), PromptsOf(8));
  std::vector<FakeRank> ranks(2);
  for (int r = 0; r < 2; ++r) ranks[r].Apply(TakeFor(dispatcher, r));
  EXPECT_EQ(ranks[0].left() + ranks[1].left(), 8);
  leaver.Leave();
  EXPECT_EQ(leaver.End().code(), absl::StatusCode::kCancelled);
  for (int r = 0; r < 2; ++r) {
    const Dispatcher::Works works = TakeFor(dispatcher, r);
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

// A call that nobody waits for.
struct Sunk : CallSink {
  void Begun() override { begun = true; }
  void Reply(GenerateReply) override {
    EXPECT_TRUE(begun && !end.has_value());
    ++replies;
  }
  void End(const absl::Status& status) override {
    EXPECT_FALSE(end.has_value());
    end = status;
  }
  bool begun = false;
  int replies = 0;
  std::optional<absl::Status> end;
  std::unique_ptr<Dispatcher::Admission> admission;  // ends first
};

absl::StatusOr<std::unique_ptr<Sunk>> BeginOne(Dispatcher& dispatcher, int prompts, int samples = 1,
                                               const std::function<absl::Status()>& may = kMay) {
  auto call = std::make_unique<Sunk>();
  auto admission = dispatcher.Begin(HeaderOf(samples), PromptsOf(prompts), may, call.get());
  if (!admission.ok()) return admission.status();
  call->admission = *std::move(admission);
  return call;
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

TEST(Dispatcher, RefusesACallThatCouldNotEvenWaitAlone) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 3});
  const absl::Status refused = BeginOne(dispatcher, 4, 3).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "the call asks for 12 sequences; at most 11 are allowed: the 8 that can run and rollout.max_waiting = 3");
}

// Pauses one that has nothing in flight, and plays its only rank.
void PauseNow(Dispatcher& dispatcher) {
  std::thread rank([&] {
    FakeRank state;
    dispatcher.Answer(0, state.Apply(TakeFor(dispatcher, 0)));
  });
  EXPECT_TRUE(dispatcher.Pause(PauseRequest::KEEP, kStays).ok());
  rank.join();
}

TEST(Dispatcher, CallsThatWaitForAPausesEndCountAsIfTheyHadBegun) {
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

TEST(Dispatcher, WhetherACallMayBeginIsAskedWhenItBegins) {
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

TEST(Dispatcher, AWaitForWhatIsInFlightBeginsNothingElse) {
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

// What goes to a rank must fit into a message of its pipe.
TEST(Dispatcher, CutsTheWorkOfACallIntoMessagesOfBoundedSize) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 8});
  const Caller caller(dispatcher, HeaderOf(1), PromptsOf(5, 60'000));
  const Dispatcher::Works works = TakeFor(dispatcher, 0);
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

TEST(Dispatcher, APauseHoldsAllRanksAndCallsThatComeMeanwhileWait) {
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
    EXPECT_TRUE(dispatcher.Quietly(kStays, [] { return absl::OkStatus(); }).ok());
    EXPECT_FALSE(dispatcher.paused());
    dispatcher.Close();
  }
}

TEST(Dispatcher, APauseThatIsGivenUpChangesNothing) {
  Dispatcher dispatcher({.ranks = 1, .max_num_seqs = 4, .max_waiting = 10});
  Caller caller(dispatcher, HeaderOf(1), PromptsOf(2));
  FakeRank rank;
  rank.Apply(TakeFor(dispatcher, 0));
  EXPECT_EQ(dispatcher.Pause(PauseRequest::WAIT, [] { return true; }).status().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(dispatcher.paused());
  while (rank.left() > 0) dispatcher.Answer(0, rank.EndOne());
  EXPECT_TRUE(caller.End().ok());
}

TEST(Dispatcher, EnginesThatStepTogetherGetEquallyManyBatches) {
  Dispatcher dispatcher({.ranks = 3, .lockstep = true, .max_num_seqs = 4, .max_waiting = 100});
  EXPECT_EQ(dispatcher.groups(), 1);
  std::vector<FakeRank> ranks(3);
  std::vector<Dispatcher::Works> works;
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
    const Dispatcher::Works works = TakeFor(dispatcher, engine);
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
  const std::vector<Dispatcher::Works> holds = {TakeFor(dispatcher, 0), TakeFor(dispatcher, 1)};
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

#include "rollout/dispatcher.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

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

// A call on a thread of its own.
class Caller {
 public:
  Caller(Dispatcher& dispatcher, GenerateHeader header, std::vector<Prompt> prompts) {
    thread_ = std::thread([this, &dispatcher, header = std::move(header), prompts = std::move(prompts)] {
      status_ = dispatcher.Generate(
          header, prompts, [] { return absl::OkStatus(); }, [this] { return gone_.load(); },
          [this](GenerateReply reply) {
            ++replies_;
            aborted_ += reply.sequence().finish_reason() == GeneratedSequence::ABORTED;
            return true;
          });
      ended_ = true;
    });
  }
  ~Caller() {
    gone_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void Leave() { gone_ = true; }
  absl::Status End() {
    thread_.join();
    return status_;
  }
  int replies() const { return replies_; }
  int aborted() const { return aborted_; }
  bool ended() const { return ended_; }

 private:
  std::atomic<bool> gone_ = false;
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

// A rank that takes its work and ends one sequence after another, on a thread of its own.
class BusyRank {
 public:
  BusyRank(Dispatcher& dispatcher, int rank) {
    thread_ = std::thread([this, &dispatcher, rank] {
      Dispatcher::Works works;
      while (dispatcher.Take(rank, /*wait=*/state.left() == 0 || state.held, &works)) {
        dispatcher.Answer(rank, state.Apply(works));
        if (!state.held) {
          RankEvents events = state.EndOne();
          ended += events.events_size();
          dispatcher.Answer(rank, std::move(events));
        }
      }
    });
  }
  ~BusyRank() { thread_.join(); }
  FakeRank state;
  std::atomic<int> ended = 0;

 private:
  std::thread thread_;
};

void Until(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::yield();
}

const std::function<bool()> kStays = [] { return false; };

TEST(Dispatcher, GivesEachRankAShareByLoadAndAllAnswersToTheirCalls) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 1000});
  Caller first(dispatcher, HeaderOf(3), PromptsOf(10));
  Caller second(dispatcher, HeaderOf(1, 40), PromptsOf(7));
  std::vector<FakeRank> ranks(2);
  Until([&] {
    for (int r = 0; r < 2; ++r) {
      Dispatcher::Works works;
      EXPECT_TRUE(dispatcher.Take(r, /*wait=*/false, &works));
      ranks[r].Apply(works);
    }
    return ranks[0].left() + ranks[1].left() == 37;
  });
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
  Dispatcher::Works works;
  std::vector<FakeRank> ranks(2);
  for (int r = 0; r < 2; ++r) {
    ASSERT_TRUE(dispatcher.Take(r, /*wait=*/true, &works));
    ranks[r].Apply(works);
  }
  EXPECT_EQ(ranks[0].left() + ranks[1].left(), 8);
  leaver.Leave();
  EXPECT_EQ(leaver.End().code(), absl::StatusCode::kCancelled);
  for (int r = 0; r < 2; ++r) {
    ASSERT_TRUE(dispatcher.Take(r, /*wait=*/true, &works));
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
    ASSERT_TRUE(dispatcher.Take(r, /*wait=*/true, &works));
    ranks[r].Apply(works);
    while (ranks[r].left() > 0) dispatcher.Answer(r, ranks[r].EndOne());
  }
  EXPECT_TRUE(next.End().ok());
}

TEST(Dispatcher, RefusesWhatWouldWaitBehindTooMany) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 3});
  Caller most(dispatcher, HeaderOf(2), PromptsOf(5));
  Dispatcher::Works works;
  ASSERT_TRUE(dispatcher.Take(0, /*wait=*/true, &works));
  Caller too_many(dispatcher, HeaderOf(1), PromptsOf(2));
  const absl::Status refused = too_many.End();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(
      refused.message(),
      "the call asks for 2 sequences while 8 run and 2 wait; at most 3 may wait (rollout.max_waiting) beside the 8 "
      "that can run");
}

TEST(Dispatcher, AFailureOfOneRankEndsTheCallsThatItServes) {
  Dispatcher dispatcher({.ranks = 2, .max_num_seqs = 4, .max_waiting = 100});
  Caller wide(dispatcher, HeaderOf(1), PromptsOf(8));
  Dispatcher::Works works;
  for (int r = 0; r < 2; ++r) ASSERT_TRUE(dispatcher.Take(r, /*wait=*/true, &works));
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
  Dispatcher::Works works;
  ASSERT_TRUE(dispatcher.Take(0, /*wait=*/true, &works));
  FakeRank rank;
  rank.Apply(works);
  EXPECT_EQ(dispatcher.Pause(PauseRequest::WAIT, [] { return true; }).status().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(dispatcher.paused());
  while (rank.left() > 0) dispatcher.Answer(0, rank.EndOne());
  EXPECT_TRUE(caller.End().ok());
}

TEST(Dispatcher, InLockstepAllRanksGetTheSameNumberOfForwardsWhileThereIsWork) {
  Dispatcher dispatcher({.ranks = 3, .lockstep = true, .max_num_seqs = 4, .max_waiting = 100});
  Caller caller(dispatcher, HeaderOf(1), PromptsOf(1));
  std::vector<FakeRank> ranks(3);
  std::vector<Dispatcher::Works> works;
  const auto steps_of = [](const Dispatcher::Works& of_rank) {
    return std::count_if(of_rank.begin(), of_rank.end(), [](const RankWork& work) { return work.step(); });
  };
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(dispatcher.TakeStep(&works));
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(steps_of(works[r]), 1);
      ranks[r].Apply(works[r]);
    }
  }
  EXPECT_EQ(ranks[0].left() + ranks[1].left() + ranks[2].left(), 1);

  // While held there is none; what comes meanwhile is brought all the same.
  std::thread pause([&] { EXPECT_EQ(*dispatcher.Pause(PauseRequest::KEEP, kStays), 1); });
  bool held = false;
  while (!held) {
    ASSERT_TRUE(dispatcher.TakeStep(&works));
    for (int r = 0; r < 3; ++r) {
      dispatcher.Answer(r, ranks[r].Apply(works[r]));
      held = ranks[r].held;
      EXPECT_FALSE(held && works[r].back().step());
    }
  }
  pause.join();
  dispatcher.Resume();
  ASSERT_TRUE(dispatcher.TakeStep(&works));
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(steps_of(works[r]), 1);
    ranks[r].Apply(works[r]);
    EXPECT_FALSE(ranks[r].held);
    dispatcher.Answer(r, ranks[r].EndOne());
  }
  EXPECT_TRUE(caller.End().ok());
  dispatcher.Close();
  EXPECT_FALSE(dispatcher.TakeStep(&works));
}

TEST(Dispatcher, RanksThatAreOneEngineGetTheSameWorkAndTheFirstAnswersForThem) {
  Dispatcher dispatcher({.ranks = 2, .ranks_per_engine = 2, .lockstep = true, .max_num_seqs = 4, .max_waiting = 2});
  EXPECT_EQ(dispatcher.engines(), 1);
  Caller too_many(dispatcher, HeaderOf(1), PromptsOf(7));
  EXPECT_EQ(too_many.End().code(), absl::StatusCode::kResourceExhausted);
  Caller caller(dispatcher, HeaderOf(2), PromptsOf(3));
  std::vector<FakeRank> ranks(2);
  std::vector<Dispatcher::Works> works;
  ASSERT_TRUE(dispatcher.TakeStep(&works));
  ASSERT_EQ(works.size(), 1u);
  for (FakeRank& rank : ranks) {
    rank.Apply(works[0]);
    EXPECT_EQ(rank.left(), 6);
  }
  // Nothing is quiet before the last of them holds.
  std::atomic<bool> paused = false;
  std::thread pause([&] {
    EXPECT_EQ(*dispatcher.Pause(PauseRequest::KEEP, kStays), 6);
    paused = true;
  });
  while (!ranks[0].held) {
    ASSERT_TRUE(dispatcher.TakeStep(&works));
    dispatcher.Answer(0, ranks[0].Apply(works[0]));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(paused);
  dispatcher.Answer(1, ranks[1].Apply(works[0]));
  pause.join();
  dispatcher.Resume();
  RankEvents events;
  events.add_events()->mutable_error()->set_message("the second of them failed");
  events.mutable_events(0)->mutable_error()->set_code(static_cast<int>(absl::StatusCode::kInternal));
  dispatcher.Answer(1, events);
  EXPECT_EQ(caller.End().message(), "rank 1: the second of them failed");
  dispatcher.Close();
}

}  // namespace
}  // namespace quartet

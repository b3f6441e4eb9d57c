// Who calls a dispatcher, and the ranks that it gives work to.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "rollout/calls/blocking_call.h"
#include "rollout/calls/dispatcher.h"

namespace quartet {

inline GenerateHeader HeaderOf(int32_t samples, int32_t tokens = 10) {
  GenerateHeader header;
  header.mutable_sampling()->set_n_samples(samples);
  header.mutable_sampling()->set_max_new_tokens(tokens);
  return header;
}

inline std::vector<Prompt> PromptsOf(int count, int length = 5) {
  std::vector<Prompt> prompts(count);
  for (int i = 0; i < count; ++i) {
    prompts[i].set_index(i);
    for (int t = 0; t < length; ++t) prompts[i].add_ids(t);
  }
  return prompts;
}

inline const std::function<absl::Status()> kMay = [] { return absl::OkStatus(); };

// A call on a thread of its own.
class Caller {
 public:
  Caller(Dispatcher& dispatcher, GenerateHeader header, std::vector<Prompt> prompts,
         Dispatcher::Origin origin = Dispatcher::Origin::kRun)
      : origin_(origin) {
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
    const auto call = BlockingCall::Begin(dispatcher, header, prompts, kMay, gone_.get_token(), origin_);
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

  const Dispatcher::Origin origin_;
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

  RankEvents Apply(const Dispatcher::WorkQueue& works) {
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
      std::vector<Dispatcher::WorkQueue> works;
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
inline Dispatcher::WorkQueue TakeFor(Dispatcher& dispatcher, int engine) {
  std::vector<Dispatcher::WorkQueue> works;
  EXPECT_TRUE(dispatcher.Take(engine, &works));
  for (int other = 0; other < dispatcher.engines(); ++other) EXPECT_EQ(works[other].empty(), other != engine);
  return works[engine];
}

inline void Until(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::yield();
}

inline const std::function<bool()> kStays = [] { return false; };

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

inline absl::StatusOr<std::unique_ptr<Sunk>> BeginOne(Dispatcher& dispatcher, int prompts, int samples = 1,
                                                      const std::function<absl::Status()>& may = kMay,
                                                      Dispatcher::Origin origin = Dispatcher::Origin::kRun) {
  auto call = std::make_unique<Sunk>();
  auto admission = dispatcher.Begin(HeaderOf(samples), PromptsOf(prompts), may, call.get(), origin);
  if (!admission.ok()) return admission.status();
  call->admission = *std::move(admission);
  return call;
}

}  // namespace quartet

#include "rollout/rank_worker.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace quartet {
namespace {

// Ends one sequence of each call in every step, with an answer of `answer_tokens` tokens.
class FakeEngine : public RolloutEngine {
 public:
  absl::Status Check(const SamplingParams&) const override { return absl::OkStatus(); }
  absl::Status Check(const SamplingParams&, const GenerationTask&) const override { return absl::OkStatus(); }
  void Add(const GenerationTask& task) override {
    left[task.call] += task.samples;
    tasks.push_back(task);
  }
  std::vector<GeneratedSequence> Cancel(uint64_t call) override {
    std::vector<GeneratedSequence> cancelled(left[call]);
    for (GeneratedSequence& sequence : cancelled) sequence.set_finish_reason(GeneratedSequence::ABORTED);
    left.erase(call);
    return cancelled;
  }
  bool idle() const override { return left.empty(); }
  absl::StatusOr<StepAgreement> AgreeOnStep(int64_t batches) override {
    const StepAgreement mine = {batches, idle()};
    return agree == nullptr ? mine : agree(mine);
  }
  absl::StatusOr<std::vector<EngineEvent>> Step() override {
    ++steps;
    tasks_at_step.push_back(tasks.size());
    if (agree != nullptr) agree({});  // as a forward has collectives
    if (!failure.ok()) {
      left.clear();
      return failure;
    }
    std::vector<EngineEvent> events;
    for (auto it = left.begin(); it != left.end();) {
      GeneratedSequence sequence;
      for (int t = 0; t < answer_tokens; ++t) sequence.mutable_tokens()->add_ids(100'000);
      events.push_back({it->first, std::move(sequence)});
      it = --it->second == 0 ? left.erase(it) : std::next(it);
    }
    return events;
  }
  void Sleep(bool) override {}
  bool has_weights() const override { return true; }
  absl::Status Wake() override { return absl::OkStatus(); }
  const std::vector<ParameterSpec>& tensors() const override { return tensors_; }
  Dtype resident_dtype() const override { return Dtype::kF32; }
  std::unique_ptr<WeightStaging> NewStaging() override { return nullptr; }
  void ReserveStaging() override {}
  void Commit(std::unique_ptr<WeightStaging>, uint64_t) override {}
  uint64_t version() const override { return 0; }
  int64_t vocab_size() const override { return 100; }
  const std::vector<int64_t>& eos_token_ids() const override { return ends_; }
  RolloutEngineStats stats() const override { return {}; }

  std::map<uint64_t, int64_t> left;
  std::vector<GenerationTask> tasks;
  std::function<StepAgreement(StepAgreement)> agree;  // with the others; null: there are none
  std::atomic<int> steps = 0;
  std::vector<size_t> tasks_at_step;  // that had been added by then
  int answer_tokens = 3;
  absl::Status failure;

 private:
  std::vector<ParameterSpec> tensors_;
  std::vector<int64_t> ends_;
};

RankWork WorkOf(uint64_t call, int32_t samples) {
  RankWork work;
  CallPart& part = *work.add_parts();
  part.set_call(call);
  part.mutable_sampling()->set_seed(7);
  part.set_stream_tokens(true);
  GenerateTask& task = *part.add_tasks();
  task.mutable_prompt()->set_index(41);
  for (const int id : {5, 6}) task.mutable_prompt()->add_ids(id);
  task.set_first_sample(2);
  task.set_samples(samples);
  return work;
}

RankWork Complete(RankWork work, bool in_flight = true) {
  work.set_complete(true);
  work.set_in_flight(in_flight);
  return work;
}

// Do with one batch.
RankWorker::Result Do(RankWorker& worker, RolloutEngine& engine, const RankWork& work) {
  worker.Put(Complete(work));
  EXPECT_TRUE(worker.Wait());
  return worker.Do(engine);
}

int Sequences(const RankWorker::Result& result) {
  int count = 0;
  for (const RankEvents& events : result.answers) {
    for (const RankEvent& event : events.events()) count += event.has_sequence();
  }
  return count;
}

TEST(RankWorker, StepsAloneAsLongAsThereIsSomethingToDo) {
  FakeEngine engine;
  RankWorker worker(/*answers=*/true);
  EXPECT_EQ(Sequences(Do(worker, engine, WorkOf(1, 2))), 1);
  ASSERT_EQ(engine.tasks.size(), 1u);
  EXPECT_EQ(engine.tasks[0].prompt_index, 41u);
  EXPECT_EQ(engine.tasks[0].ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(engine.tasks[0].first_sample, 2);
  EXPECT_EQ(engine.tasks[0].sampling->seed(), 7u);
  EXPECT_TRUE(engine.tasks[0].stream_tokens);
  EXPECT_TRUE(worker.Wait());
  EXPECT_EQ(Sequences(worker.Do(engine)), 1);
  EXPECT_TRUE(worker.Wait());
  EXPECT_TRUE(worker.Do(engine).answers.empty());  // finds out that all have ended
  EXPECT_EQ(engine.steps, 2);
  // Then it waits.
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    worker.Close();
  });
  EXPECT_FALSE(worker.Wait());
  closer.join();
}

TEST(RankWorker, AppliesABatchOnlyWhole) {
  FakeEngine engine;
  RankWorker worker(/*answers=*/true);
  worker.Put(WorkOf(1, 1));
  worker.Do(engine);
  EXPECT_TRUE(engine.tasks.empty());
  worker.Put(Complete(WorkOf(2, 1)));
  EXPECT_EQ(Sequences(worker.Do(engine)), 2);
}

TEST(RankWorker, AHeldRankMakesNoForwardButTakesWork) {
  FakeEngine engine;
  RankWorker worker(/*answers=*/true);
  RankWork hold = WorkOf(1, 1);
  hold.set_hold(9);
  const RankWorker::Result held = Do(worker, engine, hold);
  ASSERT_EQ(held.answers.size(), 1u);
  EXPECT_EQ(held.answers[0].events(0).held(), 9u);
  Do(worker, engine, WorkOf(2, 2));
  EXPECT_EQ(engine.steps, 0);
  RankWork end_both;
  end_both.add_cancel(1);
  end_both.add_abort(2);
  const RankWorker::Result ended = Do(worker, engine, end_both);
  EXPECT_EQ(Sequences(ended), 2);  // of the second call alone
  EXPECT_EQ(ended.answers[0].events(0).call(), 2u);
  EXPECT_EQ(ended.answers[0].events(0).sequence().finish_reason(), GeneratedSequence::ABORTED);
  RankWork release = WorkOf(3, 1);
  release.set_release(true);
  EXPECT_EQ(Sequences(Do(worker, engine, release)), 1);
}

TEST(RankWorker, DoesWhatAnotherDoesAndLeavesItTheAnswers) {
  FakeEngine engine;
  RankWorker worker(/*answers=*/false);
  EXPECT_TRUE(Do(worker, engine, WorkOf(1, 3)).answers.empty());
  EXPECT_EQ(engine.steps, 1);
  RankWork abort;
  abort.add_abort(1);
  EXPECT_TRUE(Do(worker, engine, abort).answers.empty());
  EXPECT_TRUE(engine.idle());
  RankWork hold;
  hold.set_hold(4);
  const RankWorker::Result held = Do(worker, engine, hold);
  ASSERT_EQ(held.answers.size(), 1u);
  EXPECT_EQ(held.answers[0].events(0).held(), 4u);
  engine.failure = absl::ResourceExhaustedError("no room");
  RankWork release = WorkOf(2, 1);
  release.set_release(true);
  const RankWorker::Result failed = Do(worker, engine, release);
  EXPECT_EQ(failed.status, engine.failure);
  EXPECT_EQ(failed.answers[0].events(0).error().message(), "no room");
}

TEST(RankWorker, TellsAnErrorOfTheEngineAndGoesOn) {
  FakeEngine engine;
  RankWorker worker(/*answers=*/true);
  engine.failure = absl::ResourceExhaustedError("no room");
  const RankWorker::Result failed = Do(worker, engine, WorkOf(1, 4));
  EXPECT_EQ(failed.status, engine.failure);
  ASSERT_EQ(failed.answers.size(), 1u);
  EXPECT_EQ(failed.answers[0].events(0).call(), 0u);
  EXPECT_EQ(failed.answers[0].events(0).error().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(failed.answers[0].events(0).error().message(), "no room");
  engine.failure = absl::OkStatus();
  EXPECT_EQ(Sequences(Do(worker, engine, WorkOf(2, 1))), 1);
}

TEST(RankWorker, AnswersInMessagesThatAPipeCanCarry) {
  FakeEngine engine;
  engine.answer_tokens = 150'000;  // 450 kB each
  RankWorker worker(/*answers=*/true);
  for (uint64_t call = 1; call < 9; ++call) worker.Put(WorkOf(call, 1));
  const RankWorker::Result result = Do(worker, engine, WorkOf(9, 1));
  EXPECT_EQ(Sequences(result), 9);
  for (const RankEvents& events : result.answers) EXPECT_LT(events.ByteSizeLong(), size_t{2} << 20);
}

struct Timed {
  RankWork work;
  int after_steps = 0;  // of the engine
};

// Ranks that step together, each on a thread of its own: what `works(rank)` has comes to each in its own time. End is
// the last of it.
std::vector<std::unique_ptr<FakeEngine>> StepTogether(int ranks, const std::function<std::vector<Timed>(int)>& works) {
  std::vector<std::unique_ptr<FakeEngine>> engines(ranks);
  for (auto& engine : engines) engine = std::make_unique<FakeEngine>();
  std::vector<StepAgreement> told(ranks);
  std::barrier together(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    engines[rank]->agree = [&, rank](StepAgreement mine) {
      told[rank] = mine;
      together.arrive_and_wait();
      for (const StepAgreement& other : told) {
        mine.batches = std::min(mine.batches, other.batches);
        mine.idle = mine.idle && other.idle;
      }
      together.arrive_and_wait();
      return mine;
    };
    threads.emplace_back([&, rank] {
      RankWorker worker(/*answers=*/true);
      std::thread feeder([&, rank] {
        std::minstd_rand random(rank);
        for (const Timed& timed : works(rank)) {
          while (engines[rank]->steps < timed.after_steps) std::this_thread::yield();
          if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
          worker.Put(timed.work);
        }
      });
      for (bool held = false; !held && worker.Wait();) {
        for (const RankEvents& events : worker.Do(*engines[rank]).answers) {
          for (const RankEvent& event : events.events()) held = held || event.held() == 1000;
        }
      }
      feeder.join();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return engines;
}

RankWork End() {
  RankWork work;
  work.set_hold(1000);
  return Complete(work, /*in_flight=*/false);
}

TEST(RankWorker, RanksThatDoTheSameMakeTheSameForwardsWheneverTheirWorkComes) {
  const auto engines = StepTogether(3, [](int) {
    std::minstd_rand random(5);
    std::vector<Timed> works;
    bool held = false;
    for (uint64_t call = 1; call <= 300; ++call) {
      RankWork work;
      if (random() % 2 == 0) work = WorkOf(call, 1 + static_cast<int32_t>(random() % 4));
      if (random() % 5 == 0) work.add_cancel(call - random() % 3);
      if (held) {
        work.set_release(true);
        held = false;
      } else if (random() % 6 == 0) {
        work.set_hold(call);
        held = true;
      }
      if (random() % 3 == 0) works.push_back({RankWork()});  // a batch of two messages
      works.push_back({Complete(work)});
    }
    works.push_back({End()});
    return works;
  });
  EXPECT_GT(engines[0]->steps, 10);
  for (const auto& engine : engines) {
    EXPECT_EQ(engine->tasks_at_step, engines[0]->tasks_at_step);
    EXPECT_EQ(engine->left, engines[0]->left);
  }
}

TEST(RankWorker, RanksWithoutSequencesMakeTheForwardsOfThoseThatTheyStepTogetherWith) {
  const auto engines = StepTogether(3, [](int rank) -> std::vector<Timed> {
    // What nobody waits for any more is no reason for a forward.
    RankWork gone;
    gone.add_cancel(1);
    return {{Complete(rank == 1 ? WorkOf(1, 6) : RankWork())},
            {.work = Complete(gone, /*in_flight=*/false), .after_steps = 6},
            {Complete(rank == 2 ? WorkOf(2, 3) : RankWork())},
            {.work = End(), .after_steps = 9}};
  });
  for (const auto& engine : engines) {
    EXPECT_EQ(engine->steps, 9);
    EXPECT_TRUE(engine->idle());
  }
}

}  // namespace
}  // namespace quartet

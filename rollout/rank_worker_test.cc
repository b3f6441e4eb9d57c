#include "rollout/rank_worker.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
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
  void Cancel(uint64_t call) override { left.erase(call); }
  std::vector<GeneratedSequence> Abort(uint64_t call) override {
    std::vector<GeneratedSequence> aborted(left[call]);
    for (GeneratedSequence& sequence : aborted) sequence.set_finish_reason(GeneratedSequence::ABORTED);
    left.erase(call);
    return aborted;
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
    if (!failure.ok() && steps % fails_every == 0) {
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
  void Sleep(bool) override {
    if (throws) throw std::runtime_error("half of it is done");
  }
  bool has_weights() const override { return true; }
  absl::StatusOr<std::optional<uint64_t>> Wake() override { return std::nullopt; }
  const AdapterConfig* adapters() const override { return nullptr; }
  uint64_t base_hash() const override { return 0; }
  int64_t model_parameters() const override { return 0; }
  const std::vector<ParameterSpec>& tensors() const override { return tensors_; }
  Dtype resident_dtype() const override { return Dtype::kF32; }
  std::unique_ptr<WeightStaging> NewStaging() override { return nullptr; }
  void ReserveStaging() override {}
  void Commit(std::unique_ptr<WeightStaging>, uint64_t) override {}
  uint64_t version() const override { return 0; }
  int64_t max_model_len() const override { return 1000; }
  int64_t vocab_size() const override { return 100; }
  const std::vector<int64_t>& eos_token_ids() const override { return ends_; }
  EngineStats stats() const override { return {}; }

  std::map<uint64_t, int64_t> left;
  std::vector<GenerationTask> tasks;
  std::function<StepAgreement(StepAgreement)> agree;  // with the others; null: there are none
  std::atomic<int> steps = 0;
  std::vector<size_t> tasks_at_step;  // that had been added by then
  int answer_tokens = 3;
  absl::Status failure;
  int fails_every = 1;  // steps
  bool throws = false;

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

// A rank of a service, with its engine. What it breaks the group for is in `broken`.
struct TestRank {
  explicit TestRank(int rank = 0, int ranks_per_engine = 1) {
    config.set_tensor_parallel_size(ranks_per_engine);
    context.rank = rank;
    context.world_size = std::max(rank + 1, ranks_per_engine);
    group = RankGroup::Create(context, {.on_broken = [this](const absl::Status& status) { broken = status; }});
    if (context.world_size == 1) {
      EXPECT_TRUE(group->Start(nullptr, absl::ZeroDuration()).ok());
    }
    worker = std::make_unique<RankWorker>(config, /*is_trained=*/false, context, *group, nullptr);
    auto fake = std::make_unique<FakeEngine>();
    engine = fake.get();
    EXPECT_TRUE(worker->Use(std::move(fake)).ok());
  }

  // Do with one batch.
  RankWorker::Result Do(const RankWork& work) {
    worker->Put(Complete(work));
    EXPECT_TRUE(worker->Wait());
    return worker->Do();
  }

  RolloutConfig config;
  RankContext context;
  std::unique_ptr<RankGroup> group;
  std::unique_ptr<RankWorker> worker;
  FakeEngine* engine;
  absl::Status broken;
};

int Sequences(const RankWorker::Result& result) {
  int count = 0;
  for (const RankEvents& events : result.answers) {
    for (const RankEvent& event : events.events()) count += event.has_sequence();
  }
  return count;
}

TEST(RankWorker, SaysThatItIsLoadingUntilItHasAnEngine) {
  RankContext context;
  context.world_size = 1;
  const auto group = RankGroup::Create(context, {.on_broken = [](const absl::Status& why) { FAIL() << why; }});
  ASSERT_TRUE(group->Start(nullptr, absl::ZeroDuration()).ok());
  RankWorker worker(RolloutConfig(), /*is_trained=*/false, context, *group, nullptr);
  const auto ask = [&](const char* method) { return group->Run(method, {RankInput()}, Deadline::Never()).status(); };
  for (const char* method : {kInfoMethod, kPullMethod}) EXPECT_TRUE(absl::IsUnavailable(ask(method))) << method;
  ASSERT_TRUE(worker.Use(std::make_unique<FakeEngine>()).ok());
  EXPECT_TRUE(ask(kInfoMethod).ok());
}

TEST(RankWorker, StepsAloneAsLongAsThereIsSomethingToDo) {
  TestRank rank;
  EXPECT_EQ(Sequences(rank.Do(WorkOf(1, 2))), 1);
  ASSERT_EQ(rank.engine->tasks.size(), 1u);
  EXPECT_EQ(rank.engine->tasks[0].prompt_index, 41u);
  EXPECT_EQ(rank.engine->tasks[0].ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(rank.engine->tasks[0].first_sample, 2);
  EXPECT_EQ(rank.engine->tasks[0].sampling->seed(), 7u);
  EXPECT_TRUE(rank.engine->tasks[0].stream_tokens);
  EXPECT_TRUE(rank.worker->Wait());
  EXPECT_EQ(Sequences(rank.worker->Do()), 1);
  EXPECT_TRUE(rank.worker->Wait());
  EXPECT_TRUE(rank.worker->Do().answers.empty());  // finds out that all have ended
  EXPECT_EQ(rank.engine->steps, 2);
  // Then it waits.
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    rank.worker->Close();
  });
  EXPECT_FALSE(rank.worker->Wait());
  closer.join();
}

TEST(RankWorker, AppliesABatchOnlyWhole) {
  TestRank rank;
  rank.worker->Put(WorkOf(1, 1));
  rank.worker->Do();
  EXPECT_TRUE(rank.engine->tasks.empty());
  rank.worker->Put(Complete(WorkOf(2, 1)));
  EXPECT_EQ(Sequences(rank.worker->Do()), 2);
}

TEST(RankWorker, AHeldRankMakesNoForwardButTakesWork) {
  TestRank rank;
  RankWork hold = WorkOf(1, 1);
  hold.set_hold(9);
  const RankWorker::Result held = rank.Do(hold);
  ASSERT_EQ(held.answers.size(), 1u);
  EXPECT_EQ(held.answers[0].events(0).held(), 9u);
  rank.Do(WorkOf(2, 2));
  EXPECT_EQ(rank.engine->steps, 0);
  RankWork end_both;
  end_both.add_cancel(1);
  end_both.add_abort(2);
  const RankWorker::Result ended = rank.Do(end_both);
  EXPECT_EQ(Sequences(ended), 2);  // of the second call alone
  EXPECT_EQ(ended.answers[0].events(0).call(), 2u);
  EXPECT_EQ(ended.answers[0].events(0).sequence().finish_reason(), GeneratedSequence::ABORTED);
  RankWork release = WorkOf(3, 1);
  release.set_release(true);
  EXPECT_EQ(Sequences(rank.Do(release)), 1);
}

TEST(RankWorker, DoesWhatAnotherDoesAndLeavesItTheAnswers) {
  TestRank rank(/*rank=*/1, /*ranks_per_engine=*/2);
  EXPECT_TRUE(rank.Do(WorkOf(1, 3)).answers.empty());
  EXPECT_EQ(rank.engine->steps, 1);
  RankWork abort;
  abort.add_abort(1);
  EXPECT_TRUE(rank.Do(abort).answers.empty());
  EXPECT_TRUE(rank.engine->idle());
  RankWork hold;
  hold.set_hold(4);
  const RankWorker::Result held = rank.Do(hold);
  ASSERT_EQ(held.answers.size(), 1u);
  EXPECT_EQ(held.answers[0].events(0).held(), 4u);
  rank.engine->failure = absl::ResourceExhaustedError("no room");
  RankWork release = WorkOf(2, 1);
  release.set_release(true);
  const RankWorker::Result failed = rank.Do(release);
  EXPECT_FALSE(failed.broken.ok());
  EXPECT_EQ(failed.answers[0].events(0).error().message(), "no room");
}

TEST(RankWorker, GoesOnWithLessWhereTheEngineRanOutOfMemory) {
  TestRank rank;
  rank.engine->failure = absl::ResourceExhaustedError("no room");
  const RankWorker::Result failed = rank.Do(WorkOf(1, 4));
  EXPECT_TRUE(failed.broken.ok()) << failed.broken;
  ASSERT_EQ(failed.answers.size(), 1u);
  EXPECT_EQ(failed.answers[0].events_size(), 1);
  EXPECT_EQ(failed.answers[0].events(0).call(), 1u) << "calls that it never had go on";
  EXPECT_EQ(failed.answers[0].events(0).error().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(failed.answers[0].events(0).error().message(), "no room");
  rank.engine->failure = absl::OkStatus();
  EXPECT_EQ(Sequences(rank.Do(WorkOf(2, 1))), 1);
}

// Through the group: who asks for its health must not be told that it is well.
TEST(RankWorker, AnEngineThatNobodyCanTrustBreaksTheGroup) {
  const auto work = [](TestRank& rank, int forwards) {
    std::thread thread([&] { rank.worker->Work([](const RankEvents&) {}); });
    for (int call = 1; call <= forwards; ++call) {
      const int before = rank.engine->steps;
      rank.worker->Put(Complete(WorkOf(call, 1)));
      while (rank.engine->steps == before) std::this_thread::yield();
    }
    rank.worker->Close();
    thread.join();
    return rank.broken;
  };
  TestRank wrong;
  wrong.engine->failure = absl::InternalError("CUDA error: an illegal memory access was encountered");
  EXPECT_EQ(work(wrong, 1), absl::InternalError("the engine has failed: CUDA error: an illegal memory access was "
                                                "encountered"));
  TestRank full;
  full.engine->failure = absl::ResourceExhaustedError("no room");
  EXPECT_EQ(work(full, RankWorker::kMostFailures),
            absl::ResourceExhaustedError("the engine has failed in every forward of late: no room"));
  TestRank now_and_then;
  now_and_then.engine->failure = absl::ResourceExhaustedError("no room");
  now_and_then.engine->fails_every = 2;
  EXPECT_TRUE(work(now_and_then, 4 * RankWorker::kMostFailures).ok());
  // Others wait for its part of the next forward.
  TestRank part(/*rank=*/0, /*ranks_per_engine=*/2);
  part.engine->failure = absl::ResourceExhaustedError("no room");
  EXPECT_TRUE(absl::IsResourceExhausted(work(part, 1)));
}

TEST(RankWorker, AnEngineThatWentToSleepByHalvesBreaksTheGroup) {
  TestRank rank;
  rank.engine->throws = true;
  SleepRequest request;
  RankInput input;
  input.header = request.SerializeAsString();
  EXPECT_FALSE(rank.group->Run(kSleepMethod, {input}, Deadline::Never()).ok());
  EXPECT_TRUE(absl::IsInternal(rank.broken)) << rank.broken;
}

TEST(RankWorker, AnswersInMessagesThatALaneCanCarry) {
  TestRank rank;
  rank.engine->answer_tokens = 150'000;  // 450 kB each
  for (uint64_t call = 1; call < 9; ++call) rank.worker->Put(WorkOf(call, 1));
  const RankWorker::Result result = rank.Do(WorkOf(9, 1));
  EXPECT_EQ(Sequences(result), 9);
  for (const RankEvents& events : result.answers) EXPECT_LT(events.ByteSizeLong(), size_t{2} << 20);
}

struct Timed {
  RankWork work;
  int after_steps = 0;  // of the engine
};

// Ranks that step together, each on a thread of its own: what `works(rank)` has comes to each in its own time. Last is
// the last of it, whereupon all end, though they have sequences: one that ended before would leave the others waiting.
std::vector<std::unique_ptr<TestRank>> StepTogether(int count, const std::function<std::vector<Timed>(int)>& works) {
  std::vector<std::unique_ptr<TestRank>> ranks(count);
  for (auto& rank : ranks) rank = std::make_unique<TestRank>();
  std::vector<StepAgreement> told(count);
  std::barrier together(count);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    ranks[rank]->engine->agree = [&, rank](StepAgreement mine) {
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
      RankWorker& worker = *ranks[rank]->worker;
      std::thread feeder([&, rank] {
        std::minstd_rand random(rank);
        for (const Timed& timed : works(rank)) {
          while (ranks[rank]->engine->steps < timed.after_steps) std::this_thread::yield();
          if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
          worker.Put(timed.work);
        }
      });
      while (worker.Wait()) worker.Do();
      feeder.join();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

RankWork Last() {
  RankWork work;
  work.set_last(true);
  return Complete(work);
}

TEST(RankWorker, RanksThatDoTheSameMakeTheSameForwardsWheneverTheirWorkComes) {
  const auto ranks = StepTogether(3, [](int) {
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
    works.push_back({Last()});
    return works;
  });
  EXPECT_GE(ranks[0]->engine->steps, 4);  // as many as the longest answers have tokens, were all there at once
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->engine->tasks_at_step, ranks[0]->engine->tasks_at_step);
    EXPECT_EQ(rank->engine->left, ranks[0]->engine->left);
  }
}

TEST(RankWorker, RanksWithoutSequencesMakeTheForwardsOfThoseThatTheyStepTogetherWith) {
  const auto ranks = StepTogether(3, [](int rank) -> std::vector<Timed> {
    // What nobody waits for any more is no reason for a forward.
    RankWork gone;
    gone.add_cancel(1);
    return {{Complete(rank == 1 ? WorkOf(1, 6) : RankWork())},
            {.work = Complete(gone, /*in_flight=*/false), .after_steps = 6},
            {Complete(rank == 2 ? WorkOf(2, 3) : RankWork())},
            {.work = Last(), .after_steps = 9}};
  });
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->engine->steps, 9);
    EXPECT_TRUE(rank->engine->idle());
  }
}

}  // namespace
}  // namespace quartet

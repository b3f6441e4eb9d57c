#include "rollout/rank_worker.h"

#include <deque>
#include <map>
#include <memory>
#include <string>
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
  absl::StatusOr<std::vector<EngineEvent>> Step() override {
    ++steps;
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
  void Commit(std::unique_ptr<WeightStaging>, uint64_t) override {}
  uint64_t version() const override { return 0; }
  int64_t vocab_size() const override { return 100; }
  const std::vector<int64_t>& eos_token_ids() const override { return ends_; }
  RolloutEngineStats stats() const override { return {}; }

  std::map<uint64_t, int64_t> left;
  std::vector<GenerationTask> tasks;
  int steps = 0;
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

int Sequences(const RankWorker::Result& result) {
  int count = 0;
  for (const RankEvents& events : result.answers) {
    for (const RankEvent& event : events.events()) count += event.has_sequence();
  }
  return count;
}

TEST(RankWorker, StepsAloneAsLongAsThereIsSomethingToDo) {
  FakeEngine engine;
  RankWorker worker({.lockstep = false});
  EXPECT_EQ(Sequences(worker.Do(engine, {WorkOf(1, 2)})), 1);
  ASSERT_EQ(engine.tasks.size(), 1u);
  EXPECT_EQ(engine.tasks[0].prompt_index, 41u);
  EXPECT_EQ(engine.tasks[0].ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(engine.tasks[0].first_sample, 2);
  EXPECT_EQ(engine.tasks[0].sampling->seed(), 7u);
  EXPECT_TRUE(engine.tasks[0].stream_tokens);
  EXPECT_TRUE(worker.busy());
  EXPECT_EQ(Sequences(worker.Do(engine, {})), 1);
  EXPECT_FALSE(worker.busy());
  EXPECT_TRUE(worker.Do(engine, {}).answers.empty());
  EXPECT_EQ(engine.steps, 2);
}

TEST(RankWorker, InLockstepMakesTheForwardsThatItIsToldAndNoOther) {
  FakeEngine engine;
  RankWorker worker({.lockstep = true});
  EXPECT_EQ(Sequences(worker.Do(engine, {WorkOf(1, 3)})), 0);
  EXPECT_FALSE(worker.busy());
  RankWork step;
  step.set_step(true);
  EXPECT_EQ(Sequences(worker.Do(engine, {step, step})), 2);
  EXPECT_EQ(Sequences(worker.Do(engine, {step})), 1);
  // Also without sequences of its own: others wait for its part.
  EXPECT_EQ(Sequences(worker.Do(engine, {step})), 0);
  EXPECT_EQ(engine.steps, 4);
}

TEST(RankWorker, AHeldRankMakesNoForwardButTakesWork) {
  FakeEngine engine;
  RankWorker worker({.lockstep = false});
  RankWork hold;
  hold.set_hold(9);
  const RankWorker::Result held = worker.Do(engine, {WorkOf(1, 1), hold});
  ASSERT_EQ(held.answers.size(), 1u);
  EXPECT_EQ(held.answers[0].events(0).held(), 9u);
  EXPECT_FALSE(worker.busy());
  worker.Do(engine, {WorkOf(2, 2)});
  EXPECT_EQ(engine.steps, 0);
  RankWork end_both;
  end_both.add_cancel(1);
  end_both.add_abort(2);
  const RankWorker::Result ended = worker.Do(engine, {end_both});
  EXPECT_EQ(Sequences(ended), 2);  // of the second call alone
  EXPECT_EQ(ended.answers[0].events(0).call(), 2u);
  EXPECT_EQ(ended.answers[0].events(0).sequence().finish_reason(), GeneratedSequence::ABORTED);
  RankWork release = WorkOf(3, 1);
  release.set_release(true);
  EXPECT_EQ(Sequences(worker.Do(engine, {release})), 1);
}

TEST(RankWorker, DoesWhatTheLeaderDoesAndLeavesItTheAnswers) {
  FakeEngine engine;
  RankWorker worker({.lockstep = true, .mirrors_leader = true});
  RankWork step;
  step.set_step(true);
  RankWork abort;
  abort.add_abort(1);
  EXPECT_TRUE(worker.Do(engine, {WorkOf(1, 3), step, abort}).answers.empty());
  EXPECT_EQ(engine.steps, 1);
  EXPECT_TRUE(engine.idle());
  RankWork hold;
  hold.set_hold(4);
  const RankWorker::Result held = worker.Do(engine, {hold});
  ASSERT_EQ(held.answers.size(), 1u);
  EXPECT_EQ(held.answers[0].events(0).held(), 4u);
  engine.failure = absl::ResourceExhaustedError("no room");
  const RankWorker::Result failed = worker.Do(engine, {step});
  EXPECT_EQ(failed.status, engine.failure);
  EXPECT_EQ(failed.answers[0].events(0).error().message(), "no room");
}

TEST(RankWorker, TellsAnErrorOfTheEngineAndGoesOn) {
  FakeEngine engine;
  RankWorker worker({.lockstep = false});
  engine.failure = absl::ResourceExhaustedError("no room");
  const RankWorker::Result failed = worker.Do(engine, {WorkOf(1, 4)});
  EXPECT_EQ(failed.status, engine.failure);
  ASSERT_EQ(failed.answers.size(), 1u);
  EXPECT_EQ(failed.answers[0].events(0).call(), 0u);
  EXPECT_EQ(failed.answers[0].events(0).error().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(failed.answers[0].events(0).error().message(), "no room");
  engine.failure = absl::OkStatus();
  EXPECT_EQ(Sequences(worker.Do(engine, {WorkOf(2, 1)})), 1);
}

TEST(RankWorker, AnswersInMessagesThatAPipeCanCarry) {
  FakeEngine engine;
  engine.answer_tokens = 150'000;  // 450 kB each
  RankWorker worker({.lockstep = false});
  std::deque<RankWork> works;
  for (uint64_t call = 1; call <= 9; ++call) works.push_back(WorkOf(call, 1));
  const RankWorker::Result result = worker.Do(engine, works);
  EXPECT_EQ(Sequences(result), 9);
  for (const RankEvents& events : result.answers) EXPECT_LT(events.ByteSizeLong(), size_t{2} << 20);
}

TEST(WorkInbox, GivesWhatCameInItsOrderAndEndsWhenClosed) {
  WorkInbox inbox;
  std::deque<RankWork> works;
  EXPECT_TRUE(inbox.Take(/*wait=*/false, &works));
  EXPECT_TRUE(works.empty());
  inbox.Put(WorkOf(1, 1));
  inbox.Put(WorkOf(2, 1));
  EXPECT_TRUE(inbox.Take(/*wait=*/true, &works));
  ASSERT_EQ(works.size(), 2u);
  EXPECT_EQ(works[0].parts(0).call(), 1u);
  inbox.Close();
  EXPECT_FALSE(inbox.Take(/*wait=*/true, &works));
}

}  // namespace
}  // namespace quartet

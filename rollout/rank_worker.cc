#include "rollout/rank_worker.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace quartet {
namespace {

// Far below what a message of the pipe can hold, so that one further event fits.
constexpr size_t kMessageBytes = 1 << 20;

class Answers {
 public:
  RankEvent& Add(uint64_t call, size_t bytes) {
    if (messages_.empty() || bytes_ + bytes > kMessageBytes) {
      messages_.emplace_back();
      bytes_ = 0;
    }
    bytes_ += bytes;
    RankEvent& event = *messages_.back().add_events();
    event.set_call(call);
    return event;
  }
  void Add(EngineEvent event) {
    if (auto* sequence = std::get_if<GeneratedSequence>(&event.what)) {
      *Add(event.call, sequence->ByteSizeLong()).mutable_sequence() = std::move(*sequence);
    } else if (auto* tokens = std::get_if<GeneratedTokens>(&event.what)) {
      *Add(event.call, tokens->ByteSizeLong()).mutable_tokens() = std::move(*tokens);
    } else {
      AddError(event.call, std::get<absl::Status>(event.what));
    }
  }
  void AddError(uint64_t call, const absl::Status& status) {
    RankError& error = *Add(call, status.message().size()).mutable_error();
    error.set_code(status.raw_code());
    error.set_message(std::string(status.message()));
  }
  std::vector<RankEvents> TakeAll() { return std::move(messages_); }

 private:
  std::vector<RankEvents> messages_;
  size_t bytes_ = 0;  // of the last one
};

void AddTasks(const CallPart& part, RolloutEngine& engine) {
  const auto sampling = std::make_shared<const SamplingParams>(part.sampling());
  for (const GenerateTask& message : part.tasks()) {
    GenerationTask task;
    task.call = part.call();
    task.sampling = sampling;
    task.stream_tokens = part.stream_tokens();
    task.prompt_index = message.prompt().index();
    task.ids.assign(message.prompt().ids().begin(), message.prompt().ids().end());
    task.first_sample = message.first_sample();
    task.samples = message.samples();
    engine.Add(task);
  }
}

}  // namespace

void RankWorker::Put(RankWork work) {
  const std::lock_guard lock(mutex_);
  batches_ += work.complete();
  works_.push_back(std::move(work));
  changed_.notify_all();
}

void RankWorker::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool RankWorker::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_ || busy_ || batches_ > 0; });
  return !closed_;
}

std::deque<RankWork> RankWorker::TakeBatches(int64_t count) {
  const std::lock_guard lock(mutex_);
  std::deque<RankWork> taken;
  for (batches_ -= count; count > 0; works_.pop_front()) {
    count -= works_.front().complete();
    taken.push_back(std::move(works_.front()));
  }
  return taken;
}

RankWorker::Result RankWorker::Do(RolloutEngine& engine) {
  Answers answers;
  const auto failed = [&](const absl::Status& status) -> Result {
    answers.AddError(0, status);
    return {answers.TakeAll(), status};
  };
  int64_t batches = 0;
  bool busy = false;
  {
    const std::lock_guard lock(mutex_);
    busy = busy_;
    // One by one while nothing is agreed: each may be the one that makes all busy.
    batches = busy ? batches_ : std::min<int64_t>(batches_, 1);
  }
  if (busy) {
    const absl::StatusOr<StepAgreement> agreed = engine.AgreeOnStep(batches);
    if (!agreed.ok()) return failed(agreed.status());
    batches = agreed->batches;
    pending_ = !agreed->idle;
  }
  for (const RankWork& work : TakeBatches(batches)) {
    for (const CallPart& part : work.parts()) AddTasks(part, engine);
    for (const uint64_t call : work.cancel()) engine.Cancel(call);
    for (const uint64_t call : work.abort()) {
      std::vector<GeneratedSequence> sequences = engine.Cancel(call);
      if (!answers_) continue;
      for (GeneratedSequence& sequence : sequences) answers.Add({call, std::move(sequence)});
    }
    if (work.hold() > 0) {
      held_ = true;
      answers.Add(0, 0).set_held(work.hold());
    }
    if (work.release()) held_ = false;
    if (work.complete()) pending_ = work.in_flight();
  }
  const bool steps = pending_ && !held_;
  {
    const std::lock_guard lock(mutex_);
    busy_ = steps;
  }
  if (!steps) return {answers.TakeAll(), absl::OkStatus()};
  absl::StatusOr<std::vector<EngineEvent>> events = engine.Step();
  if (!events.ok()) return failed(events.status());
  if (answers_) {
    for (EngineEvent& event : *events) answers.Add(std::move(event));
  }
  return {answers.TakeAll(), absl::OkStatus()};
}

}  // namespace quartet

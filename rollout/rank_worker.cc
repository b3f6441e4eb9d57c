#include "rollout/rank_worker.h"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/base/time/loading.h"
#include "core/base/trace.h"
#include "core/memory/catch_exceptions.h"
#include "core/rank/rank_info.h"
#include "core/service/rpc/wire_text.h"
#include "rollout/weight_receiver.h"

namespace quartet {
namespace {

// Far below what a message of the lane can hold, so that one further event fits.
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
    error.set_message(WireText(status.message()));
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

RankWorker::RankWorker(const RolloutConfig& config, bool is_trained, const RankContext& context, RankGroup& group,
                       std::shared_ptr<grpc::ChannelCredentials> credentials)
    : config_(config), is_trained_(is_trained), context_(context), group_(group), credentials_(std::move(credentials)) {
  SetBudgets(context_, &ledger_);
  RegisterTyped<PullHeader, PullSummary>(group, kPullMethod, RankGroup::Kind::kConcurrent,
                                         [this](const auto& header, auto* summary) { return Pull(header, summary); });
  // No collective, but ranks that differ in their version must not go on together.
  RegisterTyped<VersionHeader, Nothing>(group, kCommitMethod, RankGroup::Kind::kCollective,
                                        [this](const auto& header, auto*) { return Commit(header.version()); });
  RegisterTyped<Nothing, Nothing>(group, kAbortMethod, RankGroup::Kind::kConcurrent, [this](const auto&, auto*) {
    Abort();
    return absl::OkStatus();
  });
  RegisterTyped<SleepRequest, SleepReply>(group, kSleepMethod, RankGroup::Kind::kIndependent,
                                          [this](const auto& request, auto* reply) { return Sleep(request, reply); });
  RegisterTyped<Nothing, WakeSummary>(group, kWakeMethod, RankGroup::Kind::kIndependent,
                                      [this](const auto&, auto* summary) -> absl::Status {
                                        QUARTET_ASSIGN_OR_RETURN(const std::optional<uint64_t> hash, engine_->Wake());
                                        if (hash.has_value()) summary->set_base_hash(*hash);
                                        return absl::OkStatus();
                                      });
  RegisterTyped<Nothing, RolloutRankInfo>(group, kInfoMethod, RankGroup::Kind::kConcurrent,
                                          [this](const auto&, auto* info) { return Info(info); });
}

absl::Status RankWorker::Use(std::unique_ptr<RolloutEngine> engine) {
  engine_ = std::move(engine);
  if (is_trained_) {
    QUARTET_RETURN_IF_ERROR(CatchExceptions("room for the next version of the weights", ledger_, [&] {
      engine_->ReserveStaging();
      return absl::OkStatus();
    }));
  }
  loaded_ = true;
  return absl::OkStatus();
}

absl::Status RankWorker::CheckLoaded() const { return loaded_ ? absl::OkStatus() : StillLoading(kRolloutLoading); }

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

RankWorker::Result RankWorker::Do() {
  Answers said;
  const auto failed = [&](const absl::Status& status) -> Result {
    absl::Status broken = Judge(status);
    if (broken.ok()) {
      // Others, whose work is still on its way, go on.
      for (const auto& [call, left] : std::exchange(unfinished_, {})) said.AddError(call, status);
    } else {
      said.AddError(0, status);
    }
    return {said.TakeAll(), std::move(broken)};
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
    const absl::StatusOr<StepAgreement> agreed = engine_->AgreeOnStep(batches);
    if (!agreed.ok()) return failed(agreed.status());
    batches = agreed->batches;
    pending_ = !agreed->idle;
  }
  for (const RankWork& work : TakeBatches(batches)) {
    for (const CallPart& part : work.parts()) {
      AddTasks(part, *engine_);
      for (const GenerateTask& task : part.tasks()) unfinished_[part.call()] += task.samples();
    }
    for (const uint64_t call : work.cancel()) {
      engine_->Cancel(call);
      unfinished_.erase(call);
    }
    for (const uint64_t call : work.abort()) {
      unfinished_.erase(call);
      if (!answers()) {
        engine_->Cancel(call);
        continue;
      }
      for (GeneratedSequence& sequence : engine_->Abort(call)) said.Add({call, std::move(sequence)});
    }
    if (work.hold() > 0) {
      held_ = true;
      said.Add(0, 0).set_held(work.hold());
    }
    if (work.release()) held_ = false;
    if (work.complete()) pending_ = work.in_flight();
    if (!work.last()) continue;
    Close();
    return {said.TakeAll(), absl::OkStatus()};
  }
  const bool steps = pending_ && !held_;
  {
    const std::lock_guard lock(mutex_);
    busy_ = steps;
  }
  if (!steps) return {said.TakeAll(), absl::OkStatus()};
  const bool idle = engine_->idle();
  absl::StatusOr<std::vector<EngineEvent>> events = engine_->Step();
  if (!events.ok()) return failed(events.status());
  if (!idle) failures_ = 0;
  for (EngineEvent& event : *events) {
    const auto left = unfinished_.find(event.call);
    const bool one_less = std::holds_alternative<GeneratedSequence>(event.what);
    if (left != unfinished_.end() && !std::holds_alternative<GeneratedTokens>(event.what)) {
      if (!one_less || --left->second == 0) unfinished_.erase(left);
    }
    if (answers()) said.Add(std::move(event));
  }
  return {said.TakeAll(), absl::OkStatus()};
}

// Whether the engine can go on after `failure`.
absl::Status RankWorker::Judge(const absl::Status& failure) {
  ++failures_;
  const bool may_go_on = absl::IsResourceExhausted(failure) && ranks_per_model() == 1;
  if (may_go_on && failures_ < kMostFailures) return absl::OkStatus();
  return Prefixed(absl::StrCat("the engine has failed", may_go_on ? " in every forward of late" : ""), failure);
}

void RankWorker::Work(const std::function<void(RankEvents)>& answer) {
  while (Wait()) {
    Result result;
    absl::Status status = group_.RunHere([&] {
      result = Do();
      return absl::OkStatus();
    });
    for (RankEvents& events : result.answers) answer(std::move(events));
    status.Update(result.broken);
    if (status.ok()) continue;
    if (!absl::IsCancelled(status)) group_.Break(status);
    return;
  }
}

absl::Status RankWorker::Pull(const PullHeader& header, PullSummary* summary) {
  QUARTET_RETURN_IF_ERROR(CheckLoaded());
  const Deadline deadline =
      header.has_timeout_ms() ? Deadline::In(absl::Milliseconds(header.timeout_ms())) : Deadline::Never();
  const std::lock_guard lock(staging_mutex_);
  const int64_t start = TraceNow();
  staging_.reset();
  std::unique_ptr<WeightStaging> staging;
  QUARTET_RETURN_IF_ERROR(CatchExceptions("room for the new weights", ledger_, [&] {
    staging = engine_->NewStaging();
    return absl::OkStatus();
  }));
  QUARTET_ASSIGN_OR_RETURN(const PulledWeights pulled,
                           PullWeights(header.manifest(), engine_->tensors(), staging->ranges(),
                                       engine_->resident_dtype(), credentials_, deadline));
  summary->set_bytes(pulled.bytes);
  summary->mutable_hashes()->Add(pulled.hashes.begin(), pulled.hashes.end());
  // Before the leader has compared the hashes: of an update that fails nothing but this time is lost.
  QUARTET_RETURN_IF_ERROR(CatchExceptions("putting the new weights in order", ledger_, [&] {
    staging->Prepare();
    return absl::OkStatus();
  }));
  TraceSpent("weights", "pull weights", start, TraceNow(), static_cast<int64_t>(pulled.bytes));
  staging_ = std::move(staging);
  staged_version_ = header.manifest().version();
  return absl::OkStatus();
}

absl::Status RankWorker::Commit(uint64_t version) {
  const std::lock_guard lock(staging_mutex_);
  if (staging_ == nullptr || staged_version_ != version) {
    return absl::FailedPreconditionError(absl::StrCat("version ", version, " is not staged on this rank"));
  }
  return BreakUnless("putting new weights in use", [&] { engine_->Commit(std::move(staging_), version); });
}

void RankWorker::Abort() {
  const std::lock_guard lock(staging_mutex_);
  staging_.reset();
}

absl::Status RankWorker::Sleep(const SleepRequest& request, SleepReply* reply) {
  const auto held = [this] {
    return ledger_.current(MemoryCategory::kKvCache) + ledger_.current(MemoryCategory::kParameters);
  };
  const int64_t before = held();
  QUARTET_RETURN_IF_ERROR(
      BreakUnless("going to sleep", [&] { engine_->Sleep(/*release_weights=*/request.level() == 2); }));
  reply->set_bytes_released(before - held());
  return absl::OkStatus();
}

// A change of the engine that is not done, or half, leaves an engine that nobody should ask.
absl::Status RankWorker::BreakUnless(const std::string& what, absl::FunctionRef<void()> change) {
  absl::Status status = CatchExceptions(what, ledger_, [&] {
    change();
    return absl::OkStatus();
  });
  if (!status.ok()) group_.Break(status);
  return status;
}

absl::Status RankWorker::Info(RolloutRankInfo* described) const {
  QUARTET_RETURN_IF_ERROR(CheckLoaded());
  RankInfo& info = *described->mutable_info();
  info = DescribeRank(context_, ledger_);
  engine_->DescribeDevice(&info);
  info.set_model_parameters(engine_->model_parameters());
  described->set_base_hash(engine_->base_hash());
  info.set_gathered_bytes_per_parameter(static_cast<int32_t>(DtypeSize(engine_->resident_dtype())));
  if (engine_->resident_dtype() == Dtype::kBF16) DescribeCpuKernels(context_, &info);
  const EngineStats& stats = *described->mutable_stats() = engine_->stats();
  if (context_.world_size > 1) {
    GroupVolume& volume = *info.add_groups();
    volume.set_ranks(ranks_per_engine() > 1 ? ranks_per_engine() : context_.world_size);
    volume.set_stride(1);
    volume.set_sent_bytes(stats.sent_bytes());
    volume.set_received_bytes(stats.received_bytes());
  }
  return absl::OkStatus();
}

}  // namespace quartet

#include "rollout/rank_part.h"

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/training/rank_info.h"
#include "core/zero/catch_exceptions.h"
#include "rollout/weight_receiver.h"

namespace quartet {

RankPart::RankPart(const RunConfig& config, const RankContext& context, RankGroup& group,
                   std::shared_ptr<grpc::ChannelCredentials> credentials)
    : config_(config),
      context_(context),
      group_(group),
      credentials_(std::move(credentials)),
      worker_(/*answers=*/context.rank % config.rollout().tensor_parallel_size() == 0) {
  group.RegisterPipe(kWorkPipe, [this](RankPipe& pipe) { Follow(pipe); });
  RegisterTyped<PullHeader, Nothing, PullSummary, Nothing>(
      group, kPullMethod, RankGroup::Kind::kConcurrent,
      [this](const auto& header, const auto&, auto* summary, auto*) { return Pull(header, summary); });
  // No collective, but ranks that differ in their version must not go on together.
  RegisterTyped<VersionHeader, Nothing, Nothing, Nothing>(
      group, kCommitMethod, RankGroup::Kind::kCollective,
      [this](const auto& header, const auto&, auto*, auto*) { return Commit(header.version()); });
  RegisterTyped<Nothing, Nothing, Nothing, Nothing>(group, kAbortMethod, RankGroup::Kind::kConcurrent,
                                                    [this](const auto&, const auto&, auto*, auto*) {
                                                      Abort();
                                                      return absl::OkStatus();
                                                    });
  RegisterTyped<SleepRequest, Nothing, SleepReply, Nothing>(
      group, kSleepMethod, RankGroup::Kind::kLocal, [this](const auto& request, const auto&, auto* reply, auto*) {
        Sleep(request, reply);
        return absl::OkStatus();
      });
  RegisterTyped<Nothing, Nothing, Nothing, Nothing>(
      group, kWakeMethod, RankGroup::Kind::kLocal,
      [this](const auto&, const auto&, auto*, auto*) { return engine_->Wake(); });
  RegisterTyped<Nothing, Nothing, RolloutRankInfo, Nothing>(group, kInfoMethod, RankGroup::Kind::kConcurrent,
                                                            [this](const auto&, const auto&, auto* info, auto*) {
                                                              *info = Info();
                                                              return absl::OkStatus();
                                                            });
}

absl::Status RankPart::Load(const RolloutEngineOptions& options) {
  SetBudgets(context_, &ledger_);
  QUARTET_ASSIGN_OR_RETURN(engine_, RolloutEngine::Load(options, context_, &ledger_));
  // A run that trains no policy has no updates.
  if (config_.actor().pretrain().empty()) return absl::OkStatus();
  return CatchExceptions("room for the next version of the weights", ledger_, [&] {
    engine_->ReserveStaging();
    return absl::OkStatus();
  });
}

void RankPart::Sleep(const SleepRequest& request, SleepReply* reply) {
  const auto held = [this] {
    return ledger_.current(MemoryCategory::kKvCache) + ledger_.current(MemoryCategory::kParameters);
  };
  const int64_t before = held();
  engine_->Sleep(/*release_weights=*/request.level() == 2);
  reply->set_bytes_released(before - held());
}

void RankPart::Work(const std::function<void(RankEvents)>& answer) {
  while (worker_.Wait()) {
    RankWorker::Result result;
    absl::Status status = group_.RunHere([&] {
      result = worker_.Do(*engine_);
      return absl::OkStatus();
    });
    for (RankEvents& events : result.answers) answer(std::move(events));
    // Others wait for this rank's part of the next forward.
    if (ranks_per_model() > 1) status.Update(result.status);
    if (status.ok()) continue;
    if (!absl::IsCancelled(status)) group_.Break(status);
    return;
  }
}

// The follower's side, for as long as the leader lives.
void RankPart::Follow(RankPipe& pipe) {
  const std::jthread reader([&] {
    std::string message;
    RankWork work;
    while (pipe.Read(&message) && work.ParseFromString(message)) Put(std::move(work));
    Close();
  });
  Work([&](const RankEvents& events) { pipe.Write(events.SerializeAsString()); });
}

absl::Status RankPart::Pull(const PullHeader& header, PullSummary* summary) {
  const std::lock_guard lock(staging_mutex_);
  staging_.reset();
  std::unique_ptr<WeightStaging> staging;
  QUARTET_RETURN_IF_ERROR(CatchExceptions("room for the new weights", ledger_, [&] {
    staging = engine_->NewStaging();
    return absl::OkStatus();
  }));
  const absl::Time deadline =
      header.deadline_unix_ms() == 0 ? absl::InfiniteFuture() : absl::FromUnixMillis(header.deadline_unix_ms());
  QUARTET_ASSIGN_OR_RETURN(const PulledWeights pulled,
                           PullWeights(header.manifest(), engine_->tensors(), staging->ranges(),
                                       engine_->resident_dtype(), credentials_, deadline));
  summary->set_bytes(pulled.bytes);
  summary->mutable_hashes()->Add(pulled.hashes.begin(), pulled.hashes.end());
  // Before the leader has compared the hashes: of an update that fails nothing but this time is lost.
  staging->Prepare();
  staging_ = std::move(staging);
  staged_version_ = header.manifest().version();
  return absl::OkStatus();
}

absl::Status RankPart::Commit(uint64_t version) {
  const std::lock_guard lock(staging_mutex_);
  if (staging_ == nullptr || staged_version_ != version) {
    return absl::FailedPreconditionError(absl::StrCat("version ", version, " is not staged on this rank"));
  }
  engine_->Commit(std::move(staging_), version);
  return absl::OkStatus();
}

void RankPart::Abort() {
  const std::lock_guard lock(staging_mutex_);
  staging_.reset();
}

RolloutRankInfo RankPart::Info() const {
  RolloutRankInfo described;
  RankInfo& info = *described.mutable_info();
  info = DescribeRank(context_, ledger_);
  int64_t parameters = 0;
  for (const ParameterSpec& tensor : engine_->tensors()) parameters += tensor.stored_numel();
  info.set_model_parameters(parameters);
  info.set_gathered_bytes_per_parameter(static_cast<int32_t>(DtypeSize(engine_->resident_dtype())));
  const RolloutEngineStats stats = engine_->stats();
  if (context_.world_size > 1) {
    GroupVolume& volume = *info.add_groups();
    volume.set_ranks(ranks_per_engine() > 1 ? ranks_per_engine() : context_.world_size);
    volume.set_stride(1);
    volume.set_sent_bytes(stats.sent_bytes);
    volume.set_received_bytes(stats.received_bytes);
  }
  described.set_running(stats.running);
  described.set_waiting(stats.waiting);
  described.set_blocks(stats.blocks);
  described.set_blocks_in_use(stats.blocks_in_use);
  described.set_held_places(stats.held_places);
  described.set_empty_places(stats.empty_places);
  described.set_preemptions(stats.preemptions);
  described.set_prefill_tokens(stats.prefill_tokens);
  described.set_generated_tokens(stats.generated_tokens);
  described.set_admitted_tokens(stats.admitted_tokens);
  described.set_cached_tokens(stats.cached_tokens);
  described.set_prefill_tokens_per_second(stats.prefill_tokens_per_second);
  described.set_generated_tokens_per_second(stats.generated_tokens_per_second);
  return described;
}

}  // namespace quartet

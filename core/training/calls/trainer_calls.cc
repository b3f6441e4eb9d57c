#include "core/training/calls/trainer_calls.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "core/training/batch/sequence_cost.h"
#include "core/training/calls/checkpoint_calls.h"

namespace quartet {

TrainerCalls::TrainerCalls(const std::string& name, const std::string& section, const TrainerConfig& config,
                           const std::string& run_dir, std::map<std::string, std::string> configuration, HeadKind head,
                           const ModelConfig& model, int64_t vocabulary, const RankContext& context, RankGroup& group)
    : name_(name),
      run_dir_(run_dir),
      forward_method_(absl::StrCat(name, "_trainer.Forward")),
      update_method_(absl::StrCat(name, "_trainer.Update")),
      save_method_(absl::StrCat(name, "_trainer.Save")),
      sleep_method_(absl::StrCat(name, "_trainer.Sleep")),
      info_method_(absl::StrCat(name, "_trainer.Info")),
      group_(group),
      leader_(group, context.service, absl::StrCat("the ", name, " trainer is still loading its model"),
              std::move(configuration)),
      limits_{.vocab_size = vocabulary, .max_len = config.max_len()},
      vocabulary_{.rows = model.vocab_size, .tokens = vocabulary},
      batch_limits_(context.batch_limits),
      forward_batching_(ForwardBatching(
          section, config,
          MakeSequenceCost(model, head, SharingOn(context.device == "cpu", config.dtype() == "bf16", model.head_dim)))),
      update_batching_(UpdateBatching(section, config, forward_batching_.cost)) {
  const auto loaded = [this](auto work) {
    return [this, work](const auto&... call) { return engine_ == nullptr ? leader_.StillLoading() : work(call...); };
  };
  RegisterTyped<ForwardCall, TokenSequence, ForwardSummary, TokenValues>(
      group, forward_method_, RankGroup::Kind::kCollective,
      loaded([this](const auto& call, const auto& sequences, auto*, auto* replies) {
        return engine_->Forward(call, sequences, replies);
      }));
  RegisterTyped<UpdateCall, TrainingSequence, UpdateSums, TokenValues>(
      group, update_method_, RankGroup::Kind::kCollective,
      loaded([this](const auto& call, const auto& sequences, auto* sums, auto*) {
        absl::Status status = engine_->Update(call, sequences, sums);
        // What a failed step leaves is neither trained on nor served nor saved: the error is answered, and the rank
        // ends.
        if (!status.ok()) group_.Break(status);
        return status;
      }));
  RegisterTyped<SaveCall, SaveSummary>(
      group, save_method_, RankGroup::Kind::kCollective,
      loaded([this](const auto& call, auto* summary) { return engine_->Save(call, summary); }));
  RegisterTyped<SleepCall, SleepSummary>(group, sleep_method_, RankGroup::Kind::kIndependent,
                                         loaded([this](const auto&, auto*) { return engine_->Sleep(); }));
  RegisterTyped<InfoCall, RankInfo>(group, info_method_, RankGroup::Kind::kIndependent,
                                    loaded([this](const auto&, auto* info) {
                                      *info = engine_->Info();
                                      return absl::OkStatus();
                                    }));
}

void TrainerCalls::SetEngine(std::unique_ptr<TrainerEngine> engine) {
  engine_ = std::move(engine);
  leader_.SetLoaded();
}

absl::Status TrainerCalls::GetInfo(const Deadline& deadline, ServiceInfo* info) {
  QUARTET_RETURN_IF_ERROR(leader_.CheckReady("GetInfo"));
  QUARTET_ASSIGN_OR_RETURN(std::vector<RankInfo> ranks, RunOnAll<RankInfo>(group_, info_method_, InfoCall(), deadline));
  *info = leader_.Describe(std::move(ranks), limits_.max_len, {{"model", vocabulary_}});
  if (const std::optional<CallIdentity> last = guard_.last_applied()) *info->mutable_last_applied() = *last;
  return absl::OkStatus();
}

absl::Status TrainerCalls::SaveCheckpoint(const Deadline& deadline, const SaveCheckpointRequest& request,
                                          SaveCheckpointReply* reply) {
  QUARTET_RETURN_IF_ERROR(leader_.CheckReady("SaveCheckpoint"));
  return guard_.DoOnce(request.identity(), reply, [&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(*reply, RunSave(group_, save_method_, request, run_dir_, name_, deadline));
    return absl::OkStatus();
  });
}

absl::Status TrainerCalls::Sleep(const Deadline& deadline) {
  QUARTET_RETURN_IF_ERROR(leader_.CheckReady("Sleep"));
  return RunOnAll<SleepSummary>(group_, sleep_method_, SleepCall(), deadline).status();
}

}  // namespace quartet

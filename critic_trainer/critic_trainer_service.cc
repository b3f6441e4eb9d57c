#include "critic_trainer/critic_trainer_service.h"

#include <atomic>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/model/model_config.h"
#include "core/service/replay_guard.h"
#include "core/service/status_conversion.h"
#include "core/training/batch_check.h"
#include "core/training/checkpoint_calls.h"
#include "core/training/leader_calls.h"
#include "core/training/model_folder_check.h"
#include "core/training/sequence_cost.h"
#include "core/training/service_calls.h"
#include "core/training/stream_calls.h"
#include "critic_trainer/critic_engine.h"
#include "proto/critic_trainer.grpc.pb.h"

namespace quartet {
namespace {

constexpr char kValues[] = "critic_trainer.Values";
constexpr char kUpdate[] = "critic_trainer.Update";
constexpr char kSave[] = "critic_trainer.Save";
constexpr char kInfo[] = "critic_trainer.Info";

// The public calls run on gRPC's threads, the rank's handlers on its executor thread, which alone uses the engine.
class CriticTrainerService final : public RankService, public CriticTrainer::Service {
 public:
  CriticTrainerService(const RunConfig& config, const RankContext& context, RankGroup& group, const ModelConfig& model)
      : config_(config),
        context_(context),
        group_(group),
        limits_{.vocab_size = model.vocab_size, .max_len = config.critic().max_len()},
        forward_batching_(ForwardBatching("critic", config.critic(), MakeSequenceCost(model, HeadKind::kScalar))),
        update_batching_(UpdateBatching("critic", config.critic(), forward_batching_.cost)) {
    RegisterTyped<ForwardCall, TokenSequence, ForwardSummary, TokenValues>(
        group, kValues, RankGroup::Kind::kCollective,
        [this](const ForwardCall& call, const std::vector<TokenSequence>& sequences, ForwardSummary*,
               std::vector<TokenValues>* replies) { return engine_->Values(call, sequences, replies); });
    RegisterTyped<CriticUpdateCall, TrainingSequence, CriticUpdateSums, TokenValues>(
        group, kUpdate, RankGroup::Kind::kCollective,
        [this](const CriticUpdateCall& call, const std::vector<TrainingSequence>& sequences, CriticUpdateSums* sums,
               std::vector<TokenValues>*) { return engine_->Update(call, sequences, sums); });
    RegisterTyped<SaveCall, TokenSequence, SaveSummary, TokenValues>(
        group, kSave, RankGroup::Kind::kCollective,
        [this](const SaveCall& call, const std::vector<TokenSequence>&, SaveSummary* summary,
               std::vector<TokenValues>*) { return engine_->Save(call, summary); });
    RegisterTyped<InfoCall, TokenSequence, RankInfo, TokenValues>(
        group, kInfo, RankGroup::Kind::kLocal,
        [this](const InfoCall&, const std::vector<TokenSequence>&, RankInfo* info, std::vector<TokenValues>*) {
          *info = engine_->Info();
          return absl::OkStatus();
        });
  }

  grpc::Service* grpc_service() override { return this; }

  absl::Status Load() override {
    QUARTET_ASSIGN_OR_RETURN(engine_, CriticEngine::Load(config_, context_));
    loaded_ = true;
    return absl::OkStatus();
  }

  grpc::Status GetInfo(grpc::ServerContext* context, const GetInfoRequest*, ServiceInfo* info) override {
    return ToGrpc(GetInfo(DeadlineOf(*context), info));
  }
  grpc::Status Values(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<ValuesReply, ValuesRequest>* stream) override {
    return ToGrpc(Values(DeadlineOf(*context), stream));
  }
  grpc::Status Update(grpc::ServerContext* context, grpc::ServerReader<CriticUpdateRequest>* reader,
                      CriticUpdateReply* reply) override {
    return ToGrpc(Update(DeadlineOf(*context), reader, reply));
  }
  grpc::Status SaveCheckpoint(grpc::ServerContext* context, const SaveCheckpointRequest* request,
                              SaveCheckpointReply* reply) override {
    return ToGrpc(SaveCheckpoint(DeadlineOf(*context), *request, reply));
  }

 private:
  absl::Status CheckReady(const std::string& call) const {
    QUARTET_RETURN_IF_ERROR(CheckLeader(group_, call));
    if (!loaded_) return absl::UnavailableError("the critic trainer is still loading its model");
    return absl::OkStatus();
  }

  absl::Status GetInfo(absl::Time deadline, ServiceInfo* info) {
    QUARTET_RETURN_IF_ERROR(CheckReady("GetInfo"));
    QUARTET_ASSIGN_OR_RETURN(*info, DescribeService(group_, kInfo, context_.service, limits_.max_len, deadline));
    (*info->mutable_vocab_size())["model"] = static_cast<int32_t>(limits_.vocab_size);
    if (const std::optional<CallIdentity> last = guard_.last_applied()) *info->mutable_last_applied() = *last;
    return absl::OkStatus();
  }

  absl::Status Values(absl::Time deadline, grpc::ServerReaderWriter<ValuesReply, ValuesRequest>* stream) {
    QUARTET_RETURN_IF_ERROR(CheckReady("Values"));
    return AnswerForward<ValuesRequest>(group_, kValues, forward_batching_, limits_, deadline, stream,
                                        &ValuesReply::mutable_values);
  }

  absl::Status CheckUpdate(const CriticUpdateHeader& header, const std::vector<TrainingSequence>& items) const {
    QUARTET_RETURN_IF_ERROR(CheckLearningRate(header.learning_rate()));
    if (!(header.value_clip() >= 0) || !std::isfinite(header.value_clip())) {
      return absl::InvalidArgumentError(
          absl::StrCat("header.value_clip is ", header.value_clip(), "; it must be finite and not below 0 (0 = off)"));
    }
    return CheckTrainingSequences(items,
                                  {{"loss_weights", &TrainingSequence::loss_weights},
                                   {"old_values", &TrainingSequence::old_values},
                                   {"returns", &TrainingSequence::returns}},
                                  limits_);
  }

  absl::Status Update(absl::Time deadline, grpc::ServerReader<CriticUpdateRequest>* reader, CriticUpdateReply* reply) {
    QUARTET_RETURN_IF_ERROR(CheckReady("Update"));
    return AnswerUpdate<CriticUpdateRequest>(
        guard_, deadline, reader, [this](const auto& header, const auto& items) { return CheckUpdate(header, items); },
        [&](const auto& header, const auto& items) { return ApplyUpdate(header, items, deadline); }, reply);
  }

  absl::StatusOr<CriticUpdateReply> ApplyUpdate(const CriticUpdateHeader& header,
                                                const std::vector<TrainingSequence>& items, absl::Time deadline) {
    CriticUpdateCall call;
    *call.mutable_header() = header;
    QUARTET_ASSIGN_OR_RETURN(auto done, (RunUpdate<CriticUpdateReply, CriticUpdateSums>(group_, kUpdate, call, items,
                                                                                        update_batching_, deadline)));
    done.reply.set_clip_fraction(done.Mean(&CriticUpdateSums::clipped));
    done.reply.set_value_mean(done.Mean(&CriticUpdateSums::values));
    return done.reply;
  }

  absl::Status SaveCheckpoint(absl::Time deadline, const SaveCheckpointRequest& request, SaveCheckpointReply* reply) {
    QUARTET_RETURN_IF_ERROR(CheckReady("SaveCheckpoint"));
    const uint64_t hash = PayloadHash(request, std::vector<SaveCheckpointRequest>());
    QUARTET_ASSIGN_OR_RETURN(*reply, DoOnce<SaveCheckpointReply>(guard_, request.identity(), hash, deadline, [&] {
      return RunSave(group_, kSave, request, config_.run_dir(), "critic", deadline);
    }));
    return absl::OkStatus();
  }

  const RunConfig config_;
  const RankContext& context_;
  RankGroup& group_;
  const SequenceLimits limits_;
  const MicroBatching forward_batching_, update_batching_;
  ReplayGuard guard_;
  std::unique_ptr<CriticEngine> engine_;  // executor thread only
  std::atomic<bool> loaded_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankService>> CreateCriticTrainer(const RunConfig& config, const RankContext& context,
                                                                 RankGroup& group) {
  const std::string& folder = config.critic().pretrain();
  QUARTET_ASSIGN_OR_RETURN(ModelConfig model, ReadModelConfig(folder));
  QUARTET_RETURN_IF_ERROR(CheckTokenizerFits(folder, model));
  if (const std::string& actor = config.actor().pretrain(); !actor.empty() && actor != folder) {
    QUARTET_ASSIGN_OR_RETURN(ModelConfig actor_model, ReadModelConfig(actor));
    QUARTET_RETURN_IF_ERROR(CheckSameVocabulary("critic", folder, model, actor, actor_model));
  }
  return std::make_unique<CriticTrainerService>(config, context, group, model);
}

}  // namespace quartet

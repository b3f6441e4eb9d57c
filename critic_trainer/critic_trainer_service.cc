#include "critic_trainer/critic_trainer_service.h"

#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/newest_state.h"
#include "core/config/services.h"
#include "core/model/model_config.h"
#include "core/rl/options/token_arrays.h"
#include "core/service/reported_fields.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/status_conversion.h"
#include "core/training/batch/batch_check.h"
#include "core/training/calls/trainer_calls.h"
#include "core/training/engine/model_folder_check.h"
#include "critic_trainer/critic_engine.h"
#include "proto/critic_trainer.grpc.pb.h"

namespace quartet {
namespace {

class CriticTrainerService final : public RankService, public CriticTrainer::Service {
 public:
  CriticTrainerService(const RunConfig& config, const RankContext& context, RankGroup& group, const ModelConfig& model,
                       int64_t vocabulary)
      : config_(config),
        context_(context),
        calls_("critic", "critic", config.critic(), config.run_dir(), ReportedFields(config, context.service),
               HeadKind::kScalar, model, vocabulary, context, group) {}

  grpc::Service* grpc_service() override { return this; }

  absl::Status Load() override {
    QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<CriticEngine> engine,
                             CriticEngine::Load(config_.critic(), config_.seed(), context_));
    calls_.SetEngine(std::move(engine));
    return absl::OkStatus();
  }

  grpc::Status GetInfo(grpc::ServerContext* context, const GetInfoRequest*, ServiceInfo* info) override {
    return ToGrpc([&] { return calls_.GetInfo(DeadlineOf(*context), info); });
  }
  grpc::Status Values(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<ValuesReply, ValuesRequest>* stream) override {
    return ToGrpc([&] {
      return calls_.Forward<ValuesRequest>("Values", DeadlineOf(*context), stream, &ValuesReply::mutable_values);
    });
  }
  grpc::Status Update(grpc::ServerContext* context, grpc::ServerReader<CriticUpdateRequest>* reader,
                      CriticUpdateReply* reply) override {
    const auto check = [this](const CriticUpdateHeader& header, const std::vector<TrainingSequence>& items) {
      return CheckUpdate(header, items);
    };
    return ToGrpc([&] {
      return calls_.Update<CriticUpdateRequest>(DeadlineOf(*context), reader, check, &IsPairwise, &Complete, reply);
    });
  }
  grpc::Status SaveCheckpoint(grpc::ServerContext* context, const SaveCheckpointRequest* request,
                              SaveCheckpointReply* reply) override {
    return ToGrpc([&] { return calls_.SaveCheckpoint(DeadlineOf(*context), *request, reply); });
  }
  grpc::Status Sleep(grpc::ServerContext* context, const SleepTrainerRequest*, SleepTrainerReply*) override {
    return ToGrpc([&] { return calls_.Sleep(DeadlineOf(*context)); });
  }

 private:
  static bool IsPairwise(const CriticUpdateHeader& header) {
    return header.loss() == CriticUpdateHeader::LOSS_PAIRWISE;
  }

  absl::Status CheckUpdate(const CriticUpdateHeader& header, const std::vector<TrainingSequence>& items) const {
    QUARTET_RETURN_IF_ERROR(CheckLearningRate(header.learning_rate()));
    if (!(header.value_clip() >= 0) || !std::isfinite(header.value_clip())) {
      return absl::InvalidArgumentError(
          absl::StrCat("header.value_clip is ", header.value_clip(), "; it must be finite and not below 0 (0 = off)"));
    }
    if (!CriticUpdateHeader::Loss_IsValid(header.loss())) {
      return absl::InvalidArgumentError(absl::StrCat("header.loss is ", static_cast<int>(header.loss()),
                                                     "; it must be 0 (LOSS_VALUE) or 1 (LOSS_PAIRWISE)"));
    }
    if (IsPairwise(header)) {
      if (header.value_clip() != 0) {
        return absl::InvalidArgumentError(absl::StrCat("header.value_clip is ", header.value_clip(),
                                                       "; it has no effect with LOSS_PAIRWISE, so it must be 0"));
      }
      QUARTET_RETURN_IF_ERROR(CheckWholeSequences(items, calls_.limits()));
      return CheckPairs(items, /*has_margin=*/true);
    }
    return CheckTrainingSequences(items, {std::begin(kValueLossArrays), std::end(kValueLossArrays)}, calls_.limits());
  }

  static void Complete(const UpdateOutcome<CriticUpdateReply>& done, CriticUpdateReply* reply) {
    reply->set_clip_fraction(done.Mean(&UpdateSums::clipped));
    reply->set_value_mean(done.Mean(&UpdateSums::values));
  }

  const RunConfig config_;
  const RankContext& context_;
  TrainerCalls calls_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankService>> CreateCriticTrainer(const RunConfig& config, const RankContext& context,
                                                                 RankGroup& group) {
  const std::string& folder = config.critic().pretrain();
  QUARTET_ASSIGN_OR_RETURN(ModelConfig model, ReadTrainedModel("critic", config.critic()));
  QUARTET_RETURN_IF_ERROR(CheckLengthInWindow(model, folder, "critic.max_len", config.critic().max_len()));
  QUARTET_ASSIGN_OR_RETURN(const int64_t vocabulary,
                           ReadVocabulary("critic", folder, model, config.actor().pretrain()));
  RunConfig own = config;
  QUARTET_RETURN_IF_ERROR(UseNewestState(config.train(), config.run_dir(), "critic_state", own.mutable_critic()));
  return std::make_unique<CriticTrainerService>(own, context, group, model, vocabulary);
}

}  // namespace quartet

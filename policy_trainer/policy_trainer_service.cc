#include "policy_trainer/policy_trainer_service.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/fail_point.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"
#include "core/model/strided_range.h"
#include "core/service/replay_guard.h"
#include "core/service/status_conversion.h"
#include "core/training/batch_check.h"
#include "core/training/checkpoint_calls.h"
#include "core/training/leader_calls.h"
#include "core/training/model_folder_check.h"
#include "core/training/sequence_cost.h"
#include "core/training/service_calls.h"
#include "core/training/stream_calls.h"
#include "core/weights/tensor_range.h"
#include "policy_trainer/policy_checks.h"
#include "policy_trainer/policy_engine.h"
#include "policy_trainer/weight_publisher.h"
#include "proto/policy_trainer.grpc.pb.h"

namespace quartet {
namespace {

constexpr char kLogProbs[] = "policy_trainer.LogProbs";
constexpr char kUpdate[] = "policy_trainer.Update";
constexpr char kPublish[] = "policy_trainer.Publish";
constexpr char kSave[] = "policy_trainer.Save";
constexpr char kInfo[] = "policy_trainer.Info";

// The public calls run on gRPC's threads, the rank's handlers on its executor thread, which alone uses the engine.
class PolicyTrainerService final : public RankService, public PolicyTrainer::Service {
 public:
  PolicyTrainerService(const RunConfig& config, const RankContext& context, RankGroup& group, const ModelConfig& model)
      : config_(config),
        context_(context),
        group_(group),
        layout_(MakeParameterLayout(model, HeadKind::kVocabulary)),
        limits_{.vocab_size = model.vocab_size, .max_len = config.actor().max_len()},
        forward_batching_(ForwardBatching("actor", config.actor(), MakeSequenceCost(model, HeadKind::kVocabulary))),
        update_batching_(UpdateBatching("actor", config.actor(), forward_batching_.cost)) {
    RegisterTyped<ForwardCall, TokenSequence, ForwardSummary, TokenValues>(
        group, kLogProbs, RankGroup::Kind::kCollective,
        [this](const ForwardCall& call, const std::vector<TokenSequence>& sequences, ForwardSummary*,
               std::vector<TokenValues>* replies) { return engine_->LogProbs(call, sequences, replies); });
    RegisterTyped<PolicyUpdateCall, TrainingSequence, PolicyUpdateSums, TokenValues>(
        group, kUpdate, RankGroup::Kind::kCollective,
        [this](const PolicyUpdateCall& call, const std::vector<TrainingSequence>& sequences, PolicyUpdateSums* sums,
               std::vector<TokenValues>*) { return engine_->Update(call, sequences, sums); });
    RegisterTyped<PublishCall, TokenSequence, PublishedPart, TokenValues>(
        group, kPublish, RankGroup::Kind::kLocal,
        [this](const PublishCall& call, const std::vector<TokenSequence>&, PublishedPart* part,
               std::vector<TokenValues>*) { return Freeze(call.version(), part); });
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
    QUARTET_ASSIGN_OR_RETURN(engine_, PolicyEngine::Load(config_, context_));
    std::lock_guard lock(mutex_);
    loaded_ = true;
    return absl::OkStatus();
  }

  grpc::Status GetInfo(grpc::ServerContext* context, const GetInfoRequest*, ServiceInfo* info) override {
    return ToGrpc(GetInfo(DeadlineOf(*context), info));
  }
  grpc::Status LogProbs(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<LogProbsReply, LogProbsRequest>* stream) override {
    return ToGrpc(LogProbs(DeadlineOf(*context), stream));
  }
  grpc::Status Update(grpc::ServerContext* context, grpc::ServerReader<PolicyUpdateRequest>* reader,
                      PolicyUpdateReply* reply) override {
    return ToGrpc(Update(DeadlineOf(*context), reader, reply));
  }
  grpc::Status Publish(grpc::ServerContext* context, const PublishRequest* request, PublishReply* reply) override {
    return ToGrpc(Publish(DeadlineOf(*context), *request, reply));
  }
  grpc::Status PullWeights(grpc::ServerContext* context, const PullWeightsRequest* request,
                           grpc::ServerWriter<WeightChunk>* writer) override {
    return ToGrpc(PullWeights(context, *request, writer));
  }
  grpc::Status SaveCheckpoint(grpc::ServerContext* context, const SaveCheckpointRequest* request,
                              SaveCheckpointReply* reply) override {
    return ToGrpc(SaveCheckpoint(DeadlineOf(*context), *request, reply));
  }

 private:
  absl::Status CheckReady(const std::string& call) const {
    QUARTET_RETURN_IF_ERROR(CheckLeader(group_, call));
    std::lock_guard lock(mutex_);
    if (!loaded_) return absl::UnavailableError("the policy trainer is still loading its model");
    return absl::OkStatus();
  }

  // This rank's part of a publication.
  absl::Status Freeze(uint64_t version, PublishedPart* part) {
    {
      // The previous snapshot goes first, unless it is being read: two are not held for longer than that.
      std::lock_guard lock(mutex_);
      published_.reset();
    }
    QUARTET_ASSIGN_OR_RETURN(std::shared_ptr<const PublishedWeights> snapshot, engine_->Publish(version));
    *part = snapshot->Describe(static_cast<int>(ManifestTensors(layout_).size()));
    std::lock_guard lock(mutex_);
    published_ = std::move(snapshot);
    return absl::OkStatus();
  }

  absl::Status GetInfo(absl::Time deadline, ServiceInfo* info) {
    QUARTET_RETURN_IF_ERROR(CheckReady("GetInfo"));
    QUARTET_ASSIGN_OR_RETURN(*info, DescribeService(group_, kInfo, context_.service, limits_.max_len, deadline));
    (*info->mutable_vocab_size())["model"] = static_cast<int32_t>(limits_.vocab_size);
    if (const std::optional<CallIdentity> last = guard_.last_applied()) *info->mutable_last_applied() = *last;
    std::lock_guard lock(mutex_);
    info->set_policy_version(last_version_);
    return absl::OkStatus();
  }

  absl::Status LogProbs(absl::Time deadline, grpc::ServerReaderWriter<LogProbsReply, LogProbsRequest>* stream) {
    QUARTET_RETURN_IF_ERROR(CheckReady("LogProbs"));
    return AnswerForward<LogProbsRequest>(group_, kLogProbs, forward_batching_, limits_, deadline, stream,
                                          &LogProbsReply::mutable_log_probs);
  }

  absl::Status Update(absl::Time deadline, grpc::ServerReader<PolicyUpdateRequest>* reader, PolicyUpdateReply* reply) {
    QUARTET_RETURN_IF_ERROR(CheckReady("Update"));
    return AnswerUpdate<PolicyUpdateRequest>(
        guard_, deadline, reader,
        [this](const auto& header, const auto& items) { return CheckPolicyUpdate(header, items, limits_); },
        [&](const auto& header, const auto& items) { return ApplyUpdate(header, items, deadline); }, reply);
  }

  absl::StatusOr<PolicyUpdateReply> ApplyUpdate(const PolicyUpdateHeader& header,
                                                const std::vector<TrainingSequence>& items, absl::Time deadline) {
    PolicyUpdateCall call;
    *call.mutable_header() = header;
    QUARTET_ASSIGN_OR_RETURN(auto done, (RunUpdate<PolicyUpdateReply, PolicyUpdateSums>(group_, kUpdate, call, items,
                                                                                        update_batching_, deadline)));
    done.reply.set_clip_fraction(done.Mean(&PolicyUpdateSums::clipped));
    done.reply.set_entropy(done.Mean(&PolicyUpdateSums::entropy));
    done.reply.set_approx_kl(done.Mean(&PolicyUpdateSums::approx_kl));
    return done.reply;
  }

  absl::Status Publish(absl::Time deadline, const PublishRequest& request, PublishReply* reply) {
    QUARTET_RETURN_IF_ERROR(CheckReady("Publish"));
    const uint64_t hash = PayloadHash(request, std::vector<PublishRequest>());
    QUARTET_ASSIGN_OR_RETURN(*reply, DoOnce<PublishReply>(guard_, request.identity(), hash, deadline,
                                                          [&] { return ApplyPublish(request.version(), deadline); }));
    return absl::OkStatus();
  }

  absl::StatusOr<PublishReply> ApplyPublish(uint64_t version, absl::Time deadline) {
    {
      std::lock_guard lock(mutex_);
      if (version <= last_version_) {
        return absl::InvalidArgumentError(
            absl::StrCat("version is ", version, "; it must be above ", last_version_, ", the last one published"));
      }
    }
    PublishCall call;
    call.set_version(version);
    QUARTET_ASSIGN_OR_RETURN(std::vector<RankOutput> outputs,
                             group_.Run(kPublish, MakeInputs(call.SerializeAsString(), group_.world_size()), deadline));
    QUARTET_ASSIGN_OR_RETURN(std::vector<PublishedPart> parts, ParseSummaries<PublishedPart>(outputs));
    PublishReply reply;
    const Dtype dtype = config_.actor().dtype() == "bf16" ? Dtype::kBF16 : Dtype::kF32;
    std::vector<std::string> endpoints = group_.endpoints();
    if (endpoints.empty()) endpoints = {context_.endpoint};
    QUARTET_ASSIGN_OR_RETURN(*reply.mutable_manifest(), BuildManifest(version, dtype, layout_, parts, endpoints));
    std::lock_guard lock(mutex_);
    last_version_ = version;
    return reply;
  }

  absl::Status PullWeights(grpc::ServerContext* context, const PullWeightsRequest& request,
                           grpc::ServerWriter<WeightChunk>* writer) {
    std::shared_ptr<const PublishedWeights> weights;
    {
      std::lock_guard lock(mutex_);
      weights = published_;
    }
    if (weights == nullptr || weights->version() != request.version()) {
      return absl::NotFoundError(
          absl::StrCat("weights of version ", request.version(), " are not published by rank ", context_.rank, "; ",
                       weights == nullptr ? "nothing is" : absl::StrCat("version ", weights->version(), " is")));
    }
    const int64_t size = DtypeSize(weights->dtype());
    for (const TensorRange& range : request.ranges()) QUARTET_RETURN_IF_ERROR(weights->Check(range));
    for (const TensorRange& range : request.ranges()) {
      const StridedRange elements = ElementsOf(range);
      for (int64_t done = 0; done < elements.numel();) {
        const StridedRange part = NextPart(elements, done, kWeightChunkBytes / size);
        WeightChunk chunk;
        *chunk.mutable_range() = MakeTensorRange(range.tensor(), part);
        QUARTET_ASSIGN_OR_RETURN(*chunk.mutable_data(), weights->Read(chunk.range()));
        done += part.numel();
        if (FailPointArmed("policy_trainer.publish.corrupt")) (*chunk.mutable_data())[chunk.data().size() / 2] ^= 1;
        if (!writer->Write(chunk) || context->IsCancelled()) {
          return absl::CancelledError("the client stopped reading");
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status SaveCheckpoint(absl::Time deadline, const SaveCheckpointRequest& request, SaveCheckpointReply* reply) {
    QUARTET_RETURN_IF_ERROR(CheckReady("SaveCheckpoint"));
    const uint64_t hash = PayloadHash(request, std::vector<SaveCheckpointRequest>());
    QUARTET_ASSIGN_OR_RETURN(*reply, DoOnce<SaveCheckpointReply>(guard_, request.identity(), hash, deadline, [&] {
      return RunSave(group_, kSave, request, config_.run_dir(), "policy", deadline);
    }));
    return absl::OkStatus();
  }

  const RunConfig config_;
  const RankContext& context_;
  RankGroup& group_;
  const ParameterLayout layout_;
  const SequenceLimits limits_;
  const MicroBatching forward_batching_, update_batching_;
  ReplayGuard guard_;
  std::unique_ptr<PolicyEngine> engine_;  // executor thread only

  mutable std::mutex mutex_;  // guards what follows
  bool loaded_ = false;
  uint64_t last_version_ = 0;  // leader only
  std::shared_ptr<const PublishedWeights> published_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankService>> CreatePolicyTrainer(const RunConfig& config, const RankContext& context,
                                                                 RankGroup& group) {
  const std::string& folder = config.actor().pretrain();
  QUARTET_ASSIGN_OR_RETURN(ModelConfig model, ReadModelConfig(folder));
  QUARTET_RETURN_IF_ERROR(CheckTokenizerFits(folder, model));
  return std::make_unique<PolicyTrainerService>(config, context, group, std::move(model));
}

}  // namespace quartet

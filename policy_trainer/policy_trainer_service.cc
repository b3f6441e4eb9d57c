#include "policy_trainer/policy_trainer_service.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/method_handler.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/fail_point.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/newest_state.h"
#include "core/config/services.h"
#include "core/model/lora.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"
#include "core/model/strided_range.h"
#include "core/rl/options/policy_losses.h"
#include "core/service/reported_fields.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/status_conversion.h"
#include "core/training/calls/sequence_calls.h"
#include "core/training/calls/trainer_calls.h"
#include "core/training/engine/model_folder_check.h"
#include "core/weights/tensor_range.h"
#include "core/weights/wire/chunk_message.h"
#include "policy_trainer/policy_checks.h"
#include "policy_trainer/policy_engine.h"
#include "policy_trainer/policy_rank.pb.h"
#include "policy_trainer/weight_publisher.h"
#include "proto/policy_trainer.grpc.pb.h"

namespace quartet {
namespace {

constexpr char kPublish[] = "policy_trainer.Publish";

class PolicyTrainerService final : public RankService, public PolicyTrainer::Service {
 public:
  PolicyTrainerService(const RunConfig& config, const RankContext& context, RankGroup& group, const ModelConfig& model,
                       int64_t vocabulary)
      : config_(config),
        context_(context),
        group_(group),
        layout_(MakeTrainedLayout(model, HeadKind::kVocabulary)),
        lora_scale_(model.lora.has_value() ? std::optional(model.lora->scale) : std::nullopt),
        calls_("policy", "actor", config.actor(), config.run_dir(), ReportedFields(config, context.service),
               HeadKind::kVocabulary, model, vocabulary, context, group) {
    RegisterTyped<PublishCall, PublishedPart>(
        group, kPublish, RankGroup::Kind::kIndependent,
        [this](const auto& call, auto* part) { return Freeze(call.version(), part); });
    // In the place of the generated method, whose messages have their bytes copied.
    const auto* method = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
        absl::StrCat(PolicyTrainer::service_full_name(), ".PullWeights"));
    MarkMethodStreamed(method->index(),
                       new grpc::internal::SplitServerStreamingHandler<PullWeightsRequest, grpc::ByteBuffer>(
                           [this](grpc::ServerContext* context, Puller* puller) {
                             return ToGrpc([&] { return SendWeights(context, puller); });
                           }));
  }

  grpc::Service* grpc_service() override { return this; }

  absl::Status Load() override {
    QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<PolicyEngine> engine,
                             PolicyEngine::Load(config_.actor(), config_.seed(), context_, calls_.limits().vocab_size));
    engine_ = engine.get();
    calls_.SetEngine(std::move(engine));
    return absl::OkStatus();
  }

  grpc::Status GetInfo(grpc::ServerContext* context, const GetInfoRequest*, ServiceInfo* info) override {
    return ToGrpc([&] { return GetInfo(DeadlineOf(*context), info); });
  }
  grpc::Status LogProbs(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<LogProbsReply, LogProbsRequest>* stream) override {
    return ToGrpc([&] {
      return calls_.Forward<LogProbsRequest>("LogProbs", DeadlineOf(*context), stream,
                                             &LogProbsReply::mutable_log_probs);
    });
  }
  grpc::Status Update(grpc::ServerContext* context, grpc::ServerReader<PolicyUpdateRequest>* reader,
                      PolicyUpdateReply* reply) override {
    const auto check = [this](const PolicyUpdateHeader& header, const std::vector<TrainingSequence>& items) {
      return CheckPolicyUpdate(header, items, calls_.limits());
    };
    const auto pairs = +[](const PolicyUpdateHeader& header) { return TraitsOf(header.loss().kind()).is_of_pairs; };
    return ToGrpc([&] {
      return calls_.Update<PolicyUpdateRequest>(DeadlineOf(*context), reader, check, pairs, &Complete, reply);
    });
  }
  grpc::Status Publish(grpc::ServerContext* context, const PublishRequest* request, PublishReply* reply) override {
    return ToGrpc([&] { return Publish(DeadlineOf(*context), *request, reply); });
  }
  grpc::Status SaveCheckpoint(grpc::ServerContext* context, const SaveCheckpointRequest* request,
                              SaveCheckpointReply* reply) override {
    return ToGrpc([&] { return calls_.SaveCheckpoint(DeadlineOf(*context), *request, reply); });
  }
  grpc::Status Sleep(grpc::ServerContext* context, const SleepTrainerRequest*, SleepTrainerReply*) override {
    return ToGrpc([&] { return calls_.Sleep(DeadlineOf(*context)); });
  }

 private:
  using Puller = grpc::ServerSplitStreamer<PullWeightsRequest, grpc::ByteBuffer>;

  // This rank's part of a publication.
  absl::Status Freeze(uint64_t version, PublishedPart* part) {
    if (engine_ == nullptr) return calls_.leader().StillLoading();
    {
      // The previous snapshot goes first, unless it is being read: two are not held for longer than that.
      std::lock_guard lock(mutex_);
      published_.reset();
    }
    QUARTET_ASSIGN_OR_RETURN(std::shared_ptr<const PublishedWeights> snapshot, engine_->Publish(version));
    *part = snapshot->Describe(static_cast<int>(ManifestTensors(layout_).size()));
    part->set_base_hash(engine_->base_hash());
    std::lock_guard lock(mutex_);
    published_ = std::move(snapshot);
    return absl::OkStatus();
  }

  absl::Status GetInfo(const Deadline& deadline, ServiceInfo* info) {
    QUARTET_RETURN_IF_ERROR(calls_.GetInfo(deadline, info));
    std::lock_guard lock(mutex_);
    info->set_policy_version(last_version_);
    return absl::OkStatus();
  }

  static void Complete(const UpdateOutcome<PolicyUpdateReply>& done, PolicyUpdateReply* reply) {
    reply->set_clip_fraction(done.Mean(&UpdateSums::clipped));
    reply->set_entropy(done.Mean(&UpdateSums::entropy));
    reply->set_approx_kl(done.Mean(&UpdateSums::approx_kl));
    reply->set_kl_loss(done.Mean(&UpdateSums::kl_loss));
    reply->set_correction_clipped(done.Mean(&UpdateSums::correction_clipped));
    reply->set_correction_masked(done.Mean(&UpdateSums::correction_masked));
    // Kish's: (sum w)^2 / (n sum w^2). Without a correction there are no weights.
    const double mean = done.Mean(&UpdateSums::correction_weights);
    const double mean_square = done.Mean(&UpdateSums::correction_squares);
    reply->set_effective_sample_size(mean_square > 0 ? mean * mean / mean_square : 1);
  }

  absl::Status Publish(const Deadline& deadline, const PublishRequest& request, PublishReply* reply) {
    QUARTET_RETURN_IF_ERROR(calls_.leader().CheckReady("Publish"));
    return calls_.guard().DoOnce(request.identity(), reply, [&]() -> absl::Status {
      QUARTET_ASSIGN_OR_RETURN(*reply, ApplyPublish(request.version(), deadline));
      return absl::OkStatus();
    });
  }

  absl::StatusOr<PublishReply> ApplyPublish(uint64_t version, const Deadline& deadline) {
    {
      std::lock_guard lock(mutex_);
      if (version <= last_version_) {
        return absl::InvalidArgumentError(
            absl::StrCat("version is ", version, "; it must be above ", last_version_, ", the last one published"));
      }
    }
    PublishCall call;
    call.set_version(version);
    QUARTET_ASSIGN_OR_RETURN(const std::vector<PublishedPart> parts,
                             RunOnAll<PublishedPart>(group_, kPublish, call, deadline));
    PublishReply reply;
    const Dtype dtype = config_.actor().dtype() == "bf16" ? Dtype::kBF16 : Dtype::kF32;
    std::vector<std::string> endpoints = group_.endpoints();
    if (endpoints.empty()) endpoints = {context_.endpoint};
    QUARTET_ASSIGN_OR_RETURN(*reply.mutable_manifest(), BuildManifest(version, dtype, layout_, parts, endpoints));
    if (lora_scale_.has_value()) {
      AdapterManifest* const adapters = reply.mutable_manifest()->mutable_adapters();
      adapters->set_base_hash(parts[0].base_hash());
      adapters->set_scale(*lora_scale_ * (FailPointArmed("policy_trainer.publish.other_alpha") ? 2 : 1));
      if (FailPointArmed("policy_trainer.publish.lacks_a_tensor")) {
        reply.mutable_manifest()->mutable_tensors()->RemoveLast();
      }
    }
    std::lock_guard lock(mutex_);
    last_version_ = version;
    return reply;
  }

  absl::Status SendWeights(grpc::ServerContext* context, Puller* puller) {
    PullWeightsRequest request;
    if (!puller->Read(&request)) return absl::CancelledError("the client asked for nothing");
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
    for (const TensorRange& range : request.ranges()) QUARTET_RETURN_IF_ERROR(weights->Find(range).status());
    for (const TensorRange& range : request.ranges()) {
      const StridedRange elements = ElementsOf(range);
      for (int64_t done = 0; done < elements.numel();) {
        const StridedRange part = NextPart(elements, done, kWeightChunkBytes / size);
        const TensorRange sent = MakeTensorRange(range.tensor(), part);
        QUARTET_ASSIGN_OR_RETURN(const grpc::Slice data, DataOf(weights, sent, part));
        done += part.numel();
        if (!puller->Write(MakeChunkMessage(sent, {data})) || context->IsCancelled()) {
          return absl::CancelledError("the client stopped reading");
        }
      }
    }
    return absl::OkStatus();
  }

  // The bytes of `part`, which is `range`: of one run where they lie, for as long as they are being sent.
  static absl::StatusOr<grpc::Slice> DataOf(const std::shared_ptr<const PublishedWeights>& weights,
                                            const TensorRange& range, const StridedRange& part) {
    const bool corrupts = FailPointArmed("policy_trainer.publish.corrupt");
    if (part.rows > 1 || corrupts) {
      QUARTET_ASSIGN_OR_RETURN(std::string bytes, weights->Read(range));
      if (corrupts) bytes[bytes.size() / 2] ^= 1;
      return grpc::Slice(bytes);
    }
    using Holder = std::shared_ptr<const PublishedWeights>;
    QUARTET_ASSIGN_OR_RETURN(const char* data, weights->Find(range));
    return grpc::Slice(
        const_cast<char*>(data), static_cast<size_t>(part.count * DtypeSize(weights->dtype())),
        [](void* holder) { delete static_cast<Holder*>(holder); }, new Holder(weights));
  }

  const RunConfig config_;
  const RankContext& context_;
  RankGroup& group_;
  const ParameterLayout layout_;            // of what is published
  const std::optional<double> lora_scale_;  // where those are adapters
  TrainerCalls calls_;
  PolicyEngine* engine_ = nullptr;  // of calls_; executor thread only

  std::mutex mutex_;           // guards what follows
  uint64_t last_version_ = 0;  // leader only
  std::shared_ptr<const PublishedWeights> published_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankService>> CreatePolicyTrainer(const RunConfig& config, const RankContext& context,
                                                                 RankGroup& group) {
  const std::string& folder = config.actor().pretrain();
  QUARTET_ASSIGN_OR_RETURN(const ModelConfig model, ReadTrainedModel("actor", config.actor()));
  QUARTET_RETURN_IF_ERROR(CheckLengthInWindow(model, folder, "actor.max_len", config.actor().max_len()));
  QUARTET_ASSIGN_OR_RETURN(const int64_t vocabulary, ReadVocabulary(folder, model));
  RunConfig own = config;
  QUARTET_RETURN_IF_ERROR(UseNewestState(config.train(), config.run_dir(), "policy_state", own.mutable_actor()));
  return std::make_unique<PolicyTrainerService>(own, context, group, model, vocabulary);
}

}  // namespace quartet

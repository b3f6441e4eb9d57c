#include "scorer/scorer_service.h"

#include <atomic>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/config/services.h"
#include "core/errors/exceptions.h"
#include "core/model/model_config.h"
#include "core/rank/rank_info.h"
#include "core/rewards/labels/labels.h"
#include "core/service/ranks/group/leader_status.h"
#include "core/service/reported_fields.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/status_conversion.h"
#include "core/service/rpc/stream_io.h"
#include "core/training/batch/batch_check.h"
#include "core/training/batch/sequence_cost.h"
#include "core/training/calls/sequence_calls.h"
#include "core/training/calls/stream_calls.h"
#include "core/training/engine/model_folder_check.h"
#include "core/training/engine/reward_scale.h"
#include "proto/scorer.grpc.pb.h"
#include "scorer/answer_sources.h"
#include "scorer/scorer_engine.h"
#include "scorer/scoring.h"

namespace quartet {
namespace {

// About as long as a first answer would be tried for.
constexpr absl::Duration kServersMayStart = absl::Seconds(15);

constexpr char kReferenceLogProbs[] = "scorer.ReferenceLogProbs";
constexpr char kRewards[] = "scorer.Rewards";
constexpr char kInfo[] = "scorer.Info";

// What the leader has to know of the models.
struct ScorerModels {
  std::map<std::string, Vocabulary> vocabularies;  // by role
  // By ScoringModel::source.
  std::map<int, MicroBatching> batching;
  std::map<int, RewardScale> reward_scales;
};

// The public calls run on gRPC's threads, the rank's handlers on its executor thread, which alone uses the engine.
// What needs no model is scored by the leader, on threads of its own.
class ScorerService final : public RankService, public Scorer::Service {
 public:
  // `sources` are the leader's.
  ScorerService(const RunConfig& config, const RankContext& context, RankGroup& group, ScorerModels models,
                std::unique_ptr<AnswerSources> sources)
      : config_(config),
        context_(context),
        group_(group),
        leader_(group, context.service, "the scorer is still loading its models",
                ReportedFields(config, context.service)),
        vocabularies_(std::move(models.vocabularies)),
        batching_(std::move(models.batching)),
        reward_scales_(std::move(models.reward_scales)),
        sources_(std::move(sources)) {
    // All models read the same ids. Without a model any id that the wire can carry will do.
    limits_.vocab_size = int64_t{std::numeric_limits<int32_t>::max()} + 1;
    if (!vocabularies_.empty()) limits_.vocab_size = vocabularies_.begin()->second.tokens;
    limits_.max_len = config.actor().max_len();

    RegisterTyped<ForwardCall, TokenSequence, ForwardSummary, TokenValues>(
        group, kReferenceLogProbs, RankGroup::Kind::kCollective,
        [this](const auto& call, const auto& sequences, auto*, auto* replies) {
          return engine_ == nullptr ? leader_.StillLoading() : engine_->ReferenceLogProbs(call, sequences, replies);
        });
    RegisterTyped<ForwardCall, TokenSequence, ForwardSummary, TokenValues>(
        group, kRewards, RankGroup::Kind::kCollective,
        [this](const auto& call, const auto& sequences, auto*, auto* replies) {
          return engine_ == nullptr ? leader_.StillLoading() : engine_->Rewards(call, sequences, replies);
        });
    RegisterTyped<InfoCall, RankInfo>(group, kInfo, RankGroup::Kind::kIndependent, [this](const auto&, auto* info) {
      *info = engine_ != nullptr ? engine_->Info() : DescribeRank(context_, Ledger());
      return absl::OkStatus();
    });
  }

  grpc::Service* grpc_service() override { return this; }

  absl::Status Load() override {
    if (const std::vector<ScoringModel> models = ScoringModels(config_); !models.empty()) {
      QUARTET_ASSIGN_OR_RETURN(engine_, ScorerEngine::Load(models, context_, limits_.vocab_size));
    }
    if (sources_ != nullptr) QUARTET_RETURN_IF_ERROR(sources_->CheckFor(kServersMayStart));
    leader_.SetLoaded();
    return absl::OkStatus();
  }

  grpc::Status GetInfo(grpc::ServerContext* context, const GetInfoRequest*, ServiceInfo* info) override {
    return ToGrpc([&] { return GetInfo(DeadlineOf(*context), info); });
  }
  grpc::Status Score(grpc::ServerContext* context,
                     grpc::ServerReaderWriter<ScoreReply, ScoreRequest>* stream) override {
    return ToGrpc([&] {
      return Score(
          DeadlineOf(*context), [context] { return context->IsCancelled(); }, stream);
    });
  }
  grpc::Status ReferenceLogProbs(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<ReferenceLogProbsReply, ReferenceLogProbsRequest>* stream) override {
    return ToGrpc([&] { return ReferenceLogProbs(DeadlineOf(*context), stream); });
  }

 private:
  absl::Status GetInfo(const Deadline& deadline, ServiceInfo* info) {
    QUARTET_RETURN_IF_ERROR(leader_.CheckReady("GetInfo"));
    // Who asks before the first batch has waited for the other services, which may load for longer than this one.
    if (sources_ != nullptr) QUARTET_RETURN_IF_ERROR(sources_->Check());
    QUARTET_ASSIGN_OR_RETURN(std::vector<RankInfo> ranks, RunOnAll<RankInfo>(group_, kInfo, InfoCall(), deadline));
    *info = leader_.Describe(std::move(ranks), limits_.max_len, vocabularies_);
    if (sources_ != nullptr && sources_->size() > 0) {
      (*info->mutable_metrics())["scorer/failed_tries"] = static_cast<double>(sources_->failed_tries());
    }
    return absl::OkStatus();
  }

  absl::Status Score(const Deadline& deadline, const std::function<bool()>& cancelled,
                     grpc::ServerReaderWriter<ScoreReply, ScoreRequest>* stream) {
    QUARTET_RETURN_IF_ERROR(leader_.CheckReady("Score"));
    if (config_.reward().source().empty()) {
      return absl::FailedPreconditionError("no reward is configured: reward.source is empty");
    }
    const auto scoring = std::make_shared<Scoring>(config_, sources_.get());
    absl::Status writing;  // the writer's until it has ended
    std::atomic<bool> gone = false;
    const std::jthread writer([&] {
      writing = CatchAll([&]() -> absl::Status {
        while (const std::optional<ScoreReply> reply = scoring->Next()) {
          if (!stream->Write(*reply)) return absl::CancelledError("the client stopped reading");
        }
        return absl::OkStatus();
      });
      if (writing.ok()) return;
      gone = true;
      scoring->Close();
    });
    const absl::Cleanup close = [&] { scoring->Close(); };
    BatchReader<ScoreRequest> reader(context_.batch_limits);
    ScoreRequest request;
    while (stream->Read(&request)) {
      const size_t before = reader.items().size();
      QUARTET_RETURN_IF_ERROR(reader.Take(&request));
      if (reader.items().size() > before) {
        QUARTET_RETURN_IF_ERROR(CheckSequences({&reader.items().back().tokens()}, limits_));
        scoring->Add(&reader.items().back());
      }
      QUARTET_RETURN_IF_ERROR(scoring->status());
    }
    QUARTET_ASSIGN_OR_RETURN(const Batch<ScoreRequest> batch, reader.End());
    std::vector<const TokenSequence*> sequences;
    for (const ScoreItem& item : batch.items) sequences.push_back(&item.tokens());
    QUARTET_RETURN_IF_ERROR(CheckSequences(sequences, limits_));
    for (int s = 0; s < config_.reward().source_size(); ++s) {
      if (config_.reward().source(s).model().empty()) continue;
      QUARTET_RETURN_IF_ERROR(scoring->status());
      // Equal sequences are read once: in two micro-batches the last bits of their values would differ.
      std::vector<const TokenSequence*> read;
      std::map<std::string_view, size_t> places;     // in `read`, by the bytes of their ids
      std::vector<std::pair<size_t, size_t>> items;  // places among all, and in `read`
      for (size_t i = 0; i < sequences.size(); ++i) {
        if (!IsFor(config_.reward().source(s), batch.items[i].source())) continue;
        const auto& ids = sequences[i]->ids();
        const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0]));
        const auto [place, is_new] = places.emplace(bytes, read.size());
        if (is_new) read.push_back(sequences[i]);
        items.emplace_back(i, place->second);
      }
      QUARTET_ASSIGN_OR_RETURN(const std::vector<float> values, ApplyModel(s, read, deadline));
      for (const auto& [item, place] : items) scoring->AddModel(item, s, values[place]);
    }
    scoring->EndItems();
    while (!scoring->WaitForLast(absl::Milliseconds(100))) {
      if (deadline.passed() || cancelled()) return absl::CancelledError("the client does not wait any more");
    }
    return gone ? writing : scoring->status();
  }

  absl::StatusOr<std::vector<float>> ApplyModel(int source, const std::vector<const TokenSequence*>& sequences,
                                                const Deadline& deadline) {
    ForwardCall call;
    call.set_model(source);
    QUARTET_ASSIGN_OR_RETURN(const std::vector<TokenValues> replies,
                             RunForward(group_, kRewards, call, sequences, batching_.at(source), deadline));
    std::vector<float> values;
    const RewardScale& scale = reward_scales_.at(source);
    for (const TokenValues& reply : replies) values.push_back((reply.values(0) - scale.mean) / scale.std);
    return values;
  }

  absl::Status ReferenceLogProbs(const Deadline& deadline,
                                 grpc::ServerReaderWriter<ReferenceLogProbsReply, ReferenceLogProbsRequest>* stream) {
    QUARTET_RETURN_IF_ERROR(leader_.CheckReady("ReferenceLogProbs"));
    if (!ReferenceOf(config_).has_value()) {
      return absl::FailedPreconditionError(
          UsesReference(config_)
              ? "no reference model is loaded: with actor.lora the policy trainer answers for it; set "
                "reference.pretrain "
                "to have one"
              : "no reference model is loaded, because algorithm.kl.init_kl_coef is 0; set it above 0 to have one");
    }
    return AnswerForward<ReferenceLogProbsRequest>(group_, kReferenceLogProbs, batching_.at(-1), limits_,
                                                   context_.batch_limits, deadline, stream,
                                                   &ReferenceLogProbsReply::mutable_log_probs);
  }

  const RunConfig config_;
  const RankContext& context_;
  RankGroup& group_;
  LeaderStatus leader_;
  const std::map<std::string, Vocabulary> vocabularies_;
  // By ScoringModel::source.
  const std::map<int, MicroBatching> batching_;
  const std::map<int, RewardScale> reward_scales_;
  SequenceLimits limits_;
  std::unique_ptr<ScorerEngine> engine_;          // executor thread only; null: no models
  const std::unique_ptr<AnswerSources> sources_;  // null where this is not the leader
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankService>> CreateScorer(const RunConfig& config, const RankContext& context,
                                                          RankGroup& group) {
  ScorerModels models;
  for (const ScoringModel& scoring : ScoringModels(config)) {
    const bool is_reference = scoring.is_reference();
    QUARTET_ASSIGN_OR_RETURN(ModelConfig model, ReadModelConfig(scoring.folder));
    QUARTET_RETURN_IF_ERROR(CheckLengthInWindow(model, scoring.folder, "actor.max_len", config.actor().max_len()));
    const std::string role = is_reference
                                 ? "reference model"
                                 : absl::StrCat("reward model \"", config.reward().source(scoring.source).name(), "\"");
    QUARTET_ASSIGN_OR_RETURN(const int64_t tokens,
                             ReadVocabulary(role, scoring.folder, model, config.actor().pretrain()));
    models.vocabularies[is_reference ? "reference" : "reward"] = {.rows = model.vocab_size, .tokens = tokens};
    models.batching[scoring.source] = {
        .limit = {.sequences = scoring.sequences, .tokens = scoring.tokens},
        .tokens_option = scoring.tokens_option,
        .cost = MakeSequenceCost(model, is_reference ? HeadKind::kVocabulary : HeadKind::kScalar,
                                 SharingOn(context.device == "cpu", scoring.dtype == "bf16", model.head_dim)),
    };
    if (is_reference) continue;
    QUARTET_ASSIGN_OR_RETURN(models.reward_scales[scoring.source],
                             ReadRewardScale(config.reward().source(scoring.source)));
  }
  std::unique_ptr<AnswerSources> sources;
  if (context.rank == 0) {
    QUARTET_ASSIGN_OR_RETURN(sources, AnswerSources::Create(config.reward()));
  }
  return std::make_unique<ScorerService>(config, context, group, std::move(models), std::move(sources));
}

}  // namespace quartet

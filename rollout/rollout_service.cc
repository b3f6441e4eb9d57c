// The leader checks every call, splits it over the ranks and joins the answers. Generation and commits run on the
// executor threads, in one order on all ranks, so that no forward mixes versions; pulling weights and describing the
// service run beside them.

#include "rollout/rollout_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/fail_point.h"
#include "core/base/hash.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/service/credentials.h"
#include "core/service/protocol_version.h"
#include "core/service/replay_guard.h"
#include "core/service/status_conversion.h"
#include "core/service/stream_io.h"
#include "core/training/rank_info.h"
#include "core/zero/catch_exceptions.h"
#include "proto/rollout.grpc.pb.h"
#include "rollout/engine.h"
#include "rollout/rollout_rank.pb.h"
#include "rollout/weight_receiver.h"

namespace quartet {
namespace {

constexpr char kGenerate[] = "rollout.generate";
constexpr char kPull[] = "rollout.pull";
constexpr char kCommit[] = "rollout.commit";
constexpr char kAbort[] = "rollout.abort";
constexpr char kInfo[] = "rollout.info";

absl::Time DeadlineOf(const grpc::ServerContext& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture() : absl::FromChrono(deadline);
}

GenerationTask ToTask(const GenerateTask& message) {
  GenerationTask task;
  task.prompt_index = message.prompt().index();
  task.ids.assign(message.prompt().ids().begin(), message.prompt().ids().end());
  task.first_sample = message.first_sample();
  task.samples = message.samples();
  return task;
}

// Spreads the samples of all prompts over the ranks: the longest first, each to the rank with the least to do. Samples
// of one prompt stay together, to share its cache, unless there are too few prompts to keep all ranks busy.
std::vector<std::vector<GenerateTask>> Spread(const std::vector<Prompt>& prompts, const SamplingParams& sampling,
                                              int ranks) {
  const int32_t pieces = static_cast<int64_t>(prompts.size()) >= 4 * ranks ? 1 : std::min(sampling.n_samples(), ranks);
  std::vector<GenerateTask> tasks;
  for (const Prompt& prompt : prompts) {
    for (int32_t piece = 0; piece < pieces; ++piece) {
      const auto first = static_cast<int32_t>(int64_t{sampling.n_samples()} * piece / pieces);
      const auto end = static_cast<int32_t>(int64_t{sampling.n_samples()} * (piece + 1) / pieces);
      GenerateTask& task = tasks.emplace_back();
      *task.mutable_prompt() = prompt;
      task.set_first_sample(first);
      task.set_samples(end - first);
    }
  }
  const auto cost = [&](const GenerateTask& task) {
    return int64_t{task.prompt().ids_size()} + int64_t{task.samples()} * sampling.max_new_tokens();
  };
  std::stable_sort(tasks.begin(), tasks.end(),
                   [&](const GenerateTask& a, const GenerateTask& b) { return cost(a) > cost(b); });
  std::vector<std::vector<GenerateTask>> shares(ranks);
  std::vector<int64_t> load(ranks);
  for (GenerateTask& task : tasks) {
    const auto least = std::min_element(load.begin(), load.end()) - load.begin();
    load[least] += cost(task);
    shares[least].push_back(std::move(task));
  }
  return shares;
}

class RolloutService final : public RankService, private Rollout::Service {
 public:
  RolloutService(const RunConfig& config, const RankContext& context, RankGroup& group,
                 std::shared_ptr<grpc::ChannelCredentials> credentials)
      : config_(config), context_(context), group_(group), credentials_(std::move(credentials)) {
    const RankGroup::Kind generate_kind = sharded() ? RankGroup::Kind::kCollective : RankGroup::Kind::kLocal;
    RegisterTyped<GenerateHeader, GenerateTask, GenerateSummary, GeneratedSequence>(
        group, kGenerate, generate_kind, [this](const auto& header, const auto& tasks, auto* summary, auto* sequences) {
          return GenerateHere(header, tasks, summary, sequences);
        });
    RegisterTyped<PullHeader, Nothing, PullSummary, Nothing>(
        group, kPull, RankGroup::Kind::kConcurrent,
        [this](const auto& header, const auto&, auto* summary, auto*) { return PullHere(header, summary); });
    // No collective, but ranks that differ in their version must not go on together.
    RegisterTyped<VersionHeader, Nothing, Nothing, Nothing>(
        group, kCommit, RankGroup::Kind::kCollective,
        [this](const auto& header, const auto&, auto*, auto*) { return CommitHere(header.version()); });
    RegisterTyped<Nothing, Nothing, Nothing, Nothing>(group, kAbort, RankGroup::Kind::kConcurrent,
                                                      [this](const auto&, const auto&, auto*, auto*) {
                                                        AbortHere();
                                                        return absl::OkStatus();
                                                      });
    RegisterTyped<Nothing, Nothing, RankInfo, Nothing>(group, kInfo, RankGroup::Kind::kConcurrent,
                                                       [this](const auto&, const auto&, auto* info, auto*) {
                                                         *info = InfoHere();
                                                         return absl::OkStatus();
                                                       });
  }

  grpc::Service* grpc_service() override { return this; }

  absl::Status Load() override {
    const RolloutConfig& rollout = config_.rollout();
    RolloutEngineOptions options;
    options.model = rollout.pretrain();
    options.dtype = rollout.dtype();
    options.zero_stage = rollout.zero_stage();
    options.kv_cache_bytes = rollout.kv_cache_bytes();
    options.block_size = rollout.block_size();
    options.max_model_len = rollout.max_model_len();
    options.max_num_seqs = rollout.max_num_seqs();
    options.max_num_batched_tokens = rollout.max_num_batched_tokens();
    options.stop_token_ids.assign(rollout.stop_token_ids().begin(), rollout.stop_token_ids().end());
    SetBudgets(context_, &ledger_);
    QUARTET_ASSIGN_OR_RETURN(engine_, RolloutEngine::Load(options, context_, &ledger_));
    loaded_ = true;
    return absl::OkStatus();
  }

 private:
  bool sharded() const { return config_.rollout().zero_stage() == 3 && context_.world_size > 1; }

  // ---- The public service, on the leader.

  grpc::Status GetInfo(grpc::ServerContext* context, const GetInfoRequest*, ServiceInfo* info) override {
    return ToGrpc(DoGetInfo(DeadlineOf(*context), info));
  }
  grpc::Status Generate(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<GeneratedSequence, GenerateRequest>* stream) override {
    return ToGrpc(DoGenerate(DeadlineOf(*context), stream));
  }
  grpc::Status BeginUpdate(grpc::ServerContext* context, const BeginUpdateRequest* request,
                           BeginUpdateReply* reply) override {
    return ToGrpc(Once("BeginUpdate", *request, reply, DeadlineOf(*context),
                       [&] { return DoBeginUpdate(DeadlineOf(*context), request->manifest(), reply); }));
  }
  grpc::Status CommitUpdate(grpc::ServerContext* context, const CommitUpdateRequest* request,
                            CommitUpdateReply* reply) override {
    return ToGrpc(Once("CommitUpdate", *request, reply, DeadlineOf(*context),
                       [&] { return DoCommitUpdate(DeadlineOf(*context), request->version(), reply); }));
  }
  grpc::Status AbortUpdate(grpc::ServerContext* context, const AbortUpdateRequest* request,
                           AbortUpdateReply* reply) override {
    return ToGrpc(Once("AbortUpdate", *request, reply, DeadlineOf(*context), [&] {
      const std::lock_guard lock(update_mutex_);
      return DropStaged(DeadlineOf(*context));
    }));
  }

  absl::Status CheckServing() const {
    if (!loaded_) return absl::UnavailableError("the rollout is still loading its model");
    if (!group_.is_leader()) {
      return absl::FailedPreconditionError(absl::StrCat("this is rank ", context_.rank,
                                                        " of the rollout; calls go to rank 0 at ",
                                                        group_.endpoints().empty() ? "?" : group_.endpoints()[0]));
    }
    return absl::OkStatus();
  }

  // Does `work` under the rules of CallIdentity, so that a repeat gets the stored reply.
  template <typename Request, typename Reply>
  absl::Status Once(const char* method, const Request& request, Reply* reply, absl::Time deadline,
                    const std::function<absl::Status()>& work) {
    QUARTET_RETURN_IF_ERROR(CheckServing());
    Request payload = request;
    payload.clear_identity();
    const uint64_t hash = HashBytes(payload.SerializeAsString(), HashBytes(method));
    QUARTET_ASSIGN_OR_RETURN(const ReplayGuard::Admission admission, guard_.Begin(request.identity(), hash, deadline));
    if (!admission.is_new) {
      if (!reply->ParseFromString(admission.reply)) return absl::InternalError("a stored reply is unreadable");
      return absl::OkStatus();
    }
    if (absl::Status status = work(); !status.ok()) {
      guard_.Abandon(request.identity());
      return status;
    }
    guard_.Finish(request.identity(), reply->SerializeAsString());
    return absl::OkStatus();
  }

  // The same input for every rank.
  std::vector<RankInput> ForAll(const google::protobuf::MessageLite& header) const {
    RankInput input;
    input.header = header.SerializeAsString();
    return std::vector<RankInput>(context_.world_size, input);
  }

  absl::Status DoGetInfo(absl::Time deadline, ServiceInfo* info) {
    QUARTET_RETURN_IF_ERROR(CheckServing());
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RankOutput> outputs, group_.Run(kInfo, ForAll(Nothing()), deadline));
    for (const RankOutput& output : outputs) {
      if (!info->add_ranks()->ParseFromString(output.summary)) return absl::InternalError("unreadable RankInfo");
    }
    info->set_service("rollout");
    info->set_protocol_version(kProtocolVersion);
    (*info->mutable_vocab_size())["model"] = static_cast<int32_t>(engine_->vocab_size());
    info->set_policy_version(engine_->version());
    info->set_max_model_len(config_.rollout().max_model_len());
    if (const std::optional<CallIdentity> last = guard_.last_applied()) *info->mutable_last_applied() = *last;
    return absl::OkStatus();
  }

  absl::Status CheckVersion(uint64_t wanted) const {
    if (wanted == engine_->version()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("header.policy_version is ", wanted, ", but the weights in use are version ", engine_->version()));
  }

  absl::Status DoGenerate(absl::Time deadline, grpc::ServerReaderWriter<GeneratedSequence, GenerateRequest>* stream) {
    QUARTET_RETURN_IF_ERROR(CheckServing());
    std::optional<GenerateHeader> header;
    std::vector<Prompt> prompts;
    QUARTET_RETURN_IF_ERROR(ReadBatch<GenerateRequest>(stream, &header, &prompts));
    const SamplingParams& sampling = header->sampling();
    QUARTET_RETURN_IF_ERROR(engine_->Check(sampling));
    std::set<uint64_t> seen;
    for (const Prompt& prompt : prompts) {
      GenerateTask task;
      *task.mutable_prompt() = prompt;
      QUARTET_RETURN_IF_ERROR(engine_->Check(sampling, ToTask(task)));
      if (!seen.insert(prompt.index()).second) {
        return absl::InvalidArgumentError(absl::StrCat("prompt ", prompt.index(), ": its index comes twice"));
      }
    }
    QUARTET_RETURN_IF_ERROR(CheckVersion(header->policy_version()));
    QUARTET_RETURN_IF_ERROR(FailPoint("rollout.generate"));
    if (prompts.empty()) return absl::OkStatus();

    const std::vector<std::vector<GenerateTask>> shares = Spread(prompts, sampling, context_.world_size);
    std::vector<RankInput> inputs = ForAll(*header);
    for (int rank = 0; rank < context_.world_size; ++rank) {
      for (const GenerateTask& task : shares[rank]) inputs[rank].items.push_back(task.SerializeAsString());
    }
    const absl::Time start = absl::Now();
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RankOutput> outputs, group_.Run(kGenerate, std::move(inputs), deadline));
    uint64_t tokens = 0;
    size_t sequences = 0;
    for (const RankOutput& output : outputs) {
      GenerateSummary summary;
      if (!summary.ParseFromString(output.summary)) return absl::InternalError("unreadable GenerateSummary");
      tokens += summary.generated_tokens();
      sequences += output.items.size();
      for (const std::string& item : output.items) {
        GeneratedSequence sequence;
        if (!sequence.ParseFromString(item)) return absl::InternalError("unreadable GeneratedSequence");
        if (!stream->Write(sequence)) return absl::CancelledError("the client is gone");
      }
    }
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    QUARTET_LOG(kInfo) << "generated " << sequences << " sequences, " << tokens << " tokens in " << seconds << " s ("
                       << tokens / seconds << " tokens/s)";
    return absl::OkStatus();
  }

  absl::Status DoBeginUpdate(absl::Time deadline, const WeightManifest& manifest, BeginUpdateReply* reply) {
    const std::lock_guard lock(update_mutex_);
    QUARTET_RETURN_IF_ERROR(CheckManifest(manifest, engine_->tensors(), engine_->version()));
    verified_version_ = 0;
    absl::StatusOr<uint64_t> bytes = PullAndVerify(deadline, manifest);
    if (!bytes.ok()) {
      // The call's own deadline may have passed.
      if (const absl::Status dropped = DropStaged(absl::Now() + absl::Seconds(30)); !dropped.ok()) {
        QUARTET_LOG(kWarning) << "cannot drop the staged weights: " << dropped.ToString();
      }
      return bytes.status();
    }
    verified_version_ = manifest.version();
    reply->set_bytes_pulled(*bytes);
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> PullAndVerify(absl::Time deadline, const WeightManifest& manifest) {
    PullHeader header;
    *header.mutable_manifest() = manifest;
    header.set_deadline_unix_ms(deadline == absl::InfiniteFuture() ? 0 : absl::ToUnixMillis(deadline));
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RankOutput> outputs, group_.Run(kPull, ForAll(header), deadline));
    uint64_t bytes = 0;
    std::vector<uint64_t> sums(manifest.tensors_size());
    for (size_t rank = 0; rank < outputs.size(); ++rank) {
      PullSummary summary;
      if (!summary.ParseFromString(outputs[rank].summary) || summary.hashes_size() != manifest.tensors_size()) {
        return absl::InternalError(absl::StrCat("rank ", rank, ": unreadable PullSummary"));
      }
      bytes += summary.bytes();
      if (sharded()) {
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += summary.hashes(static_cast<int>(i));
        continue;
      }
      const std::vector<uint64_t> own(summary.hashes().begin(), summary.hashes().end());
      if (absl::Status status = CheckHashes(manifest, own); !status.ok()) {
        return absl::Status(status.code(), absl::StrCat("rank ", rank, ": ", status.message()));
      }
    }
    if (sharded()) QUARTET_RETURN_IF_ERROR(CheckHashes(manifest, sums));
    return bytes;
  }

  absl::Status DoCommitUpdate(absl::Time deadline, uint64_t version, CommitUpdateReply* reply) {
    const std::lock_guard lock(update_mutex_);
    if (version == 0 || version != verified_version_) {
      return absl::FailedPreconditionError(
          absl::StrCat("version ", version, " is not staged and verified; ",
                       verified_version_ == 0 ? "nothing is" : absl::StrCat("version ", verified_version_, " is"),
                       ", and version ", engine_->version(), " is in use"));
    }
    QUARTET_RETURN_IF_ERROR(FailPoint("rollout.commit"));
    VersionHeader header;
    header.set_version(version);
    QUARTET_RETURN_IF_ERROR(group_.Run(kCommit, ForAll(header), deadline).status());
    verified_version_ = 0;
    reply->set_policy_version(version);
    QUARTET_LOG(kInfo) << "weights are version " << version << " now";
    return absl::OkStatus();
  }

  absl::Status DropStaged(absl::Time deadline) {
    verified_version_ = 0;
    return group_.Run(kAbort, ForAll(Nothing()), deadline).status();
  }

  // ---- One rank's part.

  absl::Status GenerateHere(const GenerateHeader& header, const std::vector<GenerateTask>& tasks,
                            GenerateSummary* summary, std::vector<GeneratedSequence>* sequences) {
    // A commit may have come between the leader's check and this.
    QUARTET_RETURN_IF_ERROR(CheckVersion(header.policy_version()));
    std::vector<GenerationTask> work;
    for (const GenerateTask& task : tasks) work.push_back(ToTask(task));
    const int64_t tokens_before = engine_->stats().generated_tokens;
    QUARTET_RETURN_IF_ERROR(engine_->Generate(
        header.sampling(), work, [&](GeneratedSequence sequence) { sequences->push_back(std::move(sequence)); }));
    summary->set_generated_tokens(engine_->stats().generated_tokens - tokens_before);
    return absl::OkStatus();
  }

  absl::Status PullHere(const PullHeader& header, PullSummary* summary) {
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
    staging_ = std::move(staging);
    staged_version_ = header.manifest().version();
    return absl::OkStatus();
  }

  absl::Status CommitHere(uint64_t version) {
    const std::lock_guard lock(staging_mutex_);
    if (staging_ == nullptr || staged_version_ != version) {
      return absl::FailedPreconditionError(absl::StrCat("version ", version, " is not staged on this rank"));
    }
    engine_->Commit(std::move(staging_), version);
    return absl::OkStatus();
  }

  void AbortHere() {
    const std::lock_guard lock(staging_mutex_);
    staging_.reset();
  }

  RankInfo InfoHere() const {
    RankInfo info = DescribeRank(context_, ledger_);
    int64_t parameters = 0;
    for (const ParameterSpec& tensor : engine_->tensors()) parameters += tensor.numel();
    info.set_model_parameters(parameters);
    info.set_gathered_bytes_per_parameter(static_cast<int32_t>(DtypeSize(engine_->resident_dtype())));
    return info;
  }

  const RunConfig config_;
  const RankContext& context_;
  RankGroup& group_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  Ledger ledger_;
  std::unique_ptr<RolloutEngine> engine_;
  std::atomic<bool> loaded_ = false;  // engine_ may be used
  ReplayGuard guard_;

  // The leader: one update call at a time.
  std::mutex update_mutex_;
  uint64_t verified_version_ = 0;  // staged on all ranks; 0: none

  // This rank.
  std::mutex staging_mutex_;
  std::unique_ptr<WeightStaging> staging_;
  uint64_t staged_version_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankService>> CreateRolloutService(const RunConfig& config, const RankContext& context,
                                                                  RankGroup& group) {
  QUARTET_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials, MakeChannelCredentials(config.tls()));
  return std::unique_ptr<RankService>(new RolloutService(config, context, group, std::move(credentials)));
}

}  // namespace quartet

// The leader checks every call and hands it to the dispatcher, whose work goes to the ranks of each engine: to itself,
// and to the others over their lanes. Forwards and commits run on the executor threads, commits only while no rank
// makes a forward; pulling weights and describing the service run beside them.

#include "rollout/rollout_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/civil_time.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/fail_point.h"
#include "core/base/hash_text.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/base/time/stopwatch.h"
#include "core/config/services.h"
#include "core/config/template_date.h"
#include "core/generation/stop_strings.h"
#include "core/model/lora.h"
#include "core/model/lora_options.h"
#include "core/model/model_config.h"
#include "core/service/ranks/group/leader_status.h"
#include "core/service/reported_fields.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/credentials.h"
#include "core/service/rpc/replay_guard.h"
#include "core/service/rpc/status_conversion.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/rollout.grpc.pb.h"
#include "rollout/calls/dispatcher.h"
#include "rollout/calls/generate_calls.h"
#include "rollout/calls/rollout_backend.h"
#include "rollout/calls/rollout_metrics.h"
#include "rollout/calls/rollout_rank.pb.h"
#include "rollout/engine/engine.h"
#include "rollout/http/openai_front.h"
#include "rollout/rank_links.h"
#include "rollout/rank_worker.h"
#include "rollout/weight_receiver.h"

namespace quartet {
namespace {

class RolloutService final : public RankService,
                             private Rollout::WithCallbackMethod_Generate<Rollout::Service>,
                             private RolloutBackend {
 public:
  RolloutService(const RunConfig& config, const RankContext& context, RankGroup& group,
                 std::shared_ptr<grpc::ChannelCredentials> credentials)
      : config_(config),
        context_(context),
        group_(group),
        leader_(group, context.service, kRolloutLoading, ReportedFields(config, context.service)),
        // A run that trains no policy has no updates.
        worker_(config_.rollout(), !config_.actor().pretrain().empty(), context, group, std::move(credentials)),
        dispatcher_({.ranks = context.world_size,
                     .ranks_per_engine = worker_.ranks_per_engine(),
                     .lockstep = worker_.lockstep(),
                     .max_num_seqs = config.rollout().max_num_seqs(),
                     .max_waiting = config.rollout().max_waiting(),
                     .max_calls = config.rollout().max_calls(),
                     .max_guest_reply_bytes = config.rollout().http().max_bodies_bytes()}),
        links_(group, worker_, dispatcher_),
        generate_calls_(this, &dispatcher_, context.batch_limits, config.rollout().max_calls()) {}

  ~RolloutService() override {
    dispatcher_.Close();
    worker_.Close();
  }

  grpc::Service* grpc_service() override { return this; }
  bool IsReady() const override { return engine().has_weights(); }
  void EndCalls(const absl::Status& status) override { dispatcher_.Fail(status); }
  void AddFigures(MetricFamilies* families) override {
    constexpr absl::Duration kPatience = absl::Seconds(2);
    if (!CheckServing().ok()) return;
    const absl::StatusOr<GenerationState> state = State(Deadline::In(kPatience));
    if (!state.ok()) return;
    const std::string served = config_.rollout().http().served_model_name();
    const std::string folder = std::filesystem::path(config_.rollout().pretrain()).filename().string();
    AddRolloutFigures(*state, served.empty() ? folder : served, families);
  }
  void EndWork(const Deadline& until) override {
    dispatcher_.Close();
    links_.AwaitEnd(until);
  }

  // On the leader, where the configuration says so; answers UNAVAILABLE until Load.
  absl::Status StartHttp() {
    if (context_.rank != 0 || !config_.rollout().has_http()) return absl::OkStatus();
    QUARTET_ASSIGN_OR_RETURN(http_,
                             HttpFront::Start(config_.rollout().http(), this, config_.services().allow_other_users()));
    return absl::OkStatus();
  }

  absl::Status Load() override {
    const RolloutConfig& options = config_.rollout();
    QUARTET_ASSIGN_OR_RETURN(const std::string tokenizer_folder, TokenizerFolder(options.pretrain()));
    if (std::filesystem::exists(tokenizer_folder + "/tokenizer.json")) {
      // Chats over HTTP are read as the prompts are that the policy trains on.
      const std::string& chat_template = config_.data().tokenizer_chat_template();
      QUARTET_ASSIGN_OR_RETURN(const std::optional<absl::CivilDay> date, TemplateDate(config_.data()));
      ChatTemplateOptions chat;
      if (options.has_http()) chat = {chat_template, date, config_.data().chat_template_kwargs()};
      QUARTET_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Load(tokenizer_folder, chat));
    } else if (options.has_http()) {
      return absl::FailedPreconditionError(absl::StrCat("rollout.http is set, but ", options.pretrain(),
                                                        " has no tokenizer.json to read and write text with"));
    }
    QUARTET_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(options.pretrain()));
    rows_ = model.vocab_size;
    QUARTET_ASSIGN_OR_RETURN(
        std::unique_ptr<RolloutEngine> engine,
        RolloutEngine::Load(options, context_, worker_.ledger(), tokenizer_.get(), {}, LoraOf(config_.actor())));
    QUARTET_RETURN_IF_ERROR(worker_.Use(std::move(engine)));
    links_.Start();
    leader_.SetLoaded();
    if (http_ != nullptr) {
      QUARTET_LOG(kInfo) << "HTTP on " << http_->address() << " for model \""
                         << config_.rollout().http().served_model_name() << "\": base_url " << http_->url();
    }
    return absl::OkStatus();
  }

 private:
  const RolloutEngine& engine() const { return worker_.engine(); }

  // ---- The public service, on the leader.

  grpc::Status GetInfo(grpc::ServerContext* context, const GetInfoRequest*, ServiceInfo* info) override {
    return ToGrpc([&] { return DoGetInfo(DeadlineOf(*context), info); });
  }
  GenerateCalls::Reactor* Generate(grpc::CallbackServerContext* context) override {
    return generate_calls_.Begin(context);
  }
  grpc::Status Pause(grpc::ServerContext* context, const PauseRequest* request, PauseReply* reply) override {
    return Once(*request, reply, [&]() -> absl::Status {
      if (request->mode() == PauseRequest::MODE_UNSPECIFIED || !PauseRequest::Mode_IsValid(request->mode())) {
        return absl::InvalidArgumentError(
            absl::StrCat("mode is ", static_cast<int>(request->mode()), "; allowed: KEEP (1), ABORT (2), WAIT (3)"));
      }
      // Before it waits for another control call, which may wait for just this.
      if (request->mode() == PauseRequest::ABORT) dispatcher_.AbortInFlight();
      const std::lock_guard lock(sleep_mutex_);
      if (request->mode() == PauseRequest::WAIT) QUARTET_RETURN_IF_ERROR(CheckCanGoOn());
      QUARTET_ASSIGN_OR_RETURN(const int64_t kept, dispatcher_.Pause(request->mode(), GoneOf(context)));
      reply->set_sequences_in_flight(kept);
      return absl::OkStatus();
    });
  }
  grpc::Status Resume(grpc::ServerContext*, const ResumeRequest* request, ResumeReply* reply) override {
    return Once(*request, reply, [&]() -> absl::Status {
      const std::lock_guard lock(sleep_mutex_);
      QUARTET_RETURN_IF_ERROR(CheckCanGoOn());
      dispatcher_.Resume();
      return absl::OkStatus();
    });
  }
  grpc::Status Sleep(grpc::ServerContext* context, const SleepRequest* request, SleepReply* reply) override {
    return Once(*request, reply, [&] { return DoSleep(context, request->level(), reply); });
  }
  grpc::Status WakeUp(grpc::ServerContext* context, const WakeUpRequest* request, WakeUpReply* reply) override {
    return Once(*request, reply, [&] { return DoWakeUp(DeadlineOf(*context)); });
  }
  grpc::Status BeginUpdate(grpc::ServerContext* context, const BeginUpdateRequest* request,
                           BeginUpdateReply* reply) override {
    return Once(*request, reply, [&] { return DoBeginUpdate(DeadlineOf(*context), request->manifest(), reply); });
  }
  grpc::Status CommitUpdate(grpc::ServerContext* context, const CommitUpdateRequest* request,
                            CommitUpdateReply* reply) override {
    return Once(*request, reply, [&] { return DoCommitUpdate(context, request->version(), reply); });
  }
  grpc::Status AbortUpdate(grpc::ServerContext* context, const AbortUpdateRequest* request,
                           AbortUpdateReply* reply) override {
    return Once(*request, reply, [&] {
      const std::lock_guard lock(update_mutex_);
      return DropStaged(DeadlineOf(*context));
    });
  }

  // Whether whoever made the call has closed it, or its deadline has passed.
  static std::function<bool()> GoneOf(grpc::ServerContext* context) {
    return [context] { return context->IsCancelled(); };
  }

  absl::Status CheckServing() const override { return leader_.CheckReady("Generate"); }

  // Does `work` under the rules of CallIdentity, so that a repeat gets the stored reply.
  template <typename Request, typename Reply>
  grpc::Status Once(const Request& request, Reply* reply, absl::FunctionRef<absl::Status()> work) {
    return ToGrpc([&]() -> absl::Status {
      const std::string call(absl::StripSuffix(Request::descriptor()->name(), "Request"));
      QUARTET_RETURN_IF_ERROR(leader_.CheckReady(call));
      return guard_.DoOnce(request.identity(), reply, work);
    });
  }

  absl::StatusOr<std::vector<RolloutRankInfo>> AskRanks(const Deadline& deadline) {
    return RunOnAll<RolloutRankInfo>(group_, kInfoMethod, Nothing(), deadline);
  }

  GenerationState Summarize(const std::vector<RolloutRankInfo>& ranks) const {
    GenerationState state;
    for (size_t rank = 0; rank < ranks.size(); rank += worker_.ranks_per_engine()) {
      AddUp(ranks[rank].stats(), &state.sum);
    }
    state.calls = dispatcher_.calls();
    state.policy_version = engine().version();
    state.paused = dispatcher_.paused();
    state.asleep = asleep_;
    state.weights_released = !engine().has_weights();
    return state;
  }

  absl::Status DoGetInfo(const Deadline& deadline, ServiceInfo* info) {
    QUARTET_RETURN_IF_ERROR(leader_.CheckReady("GetInfo"));
    QUARTET_ASSIGN_OR_RETURN(std::vector<RolloutRankInfo> ranks, AskRanks(deadline));
    std::vector<RankInfo> infos;
    for (RolloutRankInfo& rank : ranks) infos.push_back(std::move(*rank.mutable_info()));
    *info = leader_.Describe(std::move(infos), max_model_len(), {{"model", {.rows = rows_, .tokens = vocab_size()}}});
    for (const RolloutMetric& metric : MetricsOf(Summarize(ranks))) {
      if (!metric.name.empty()) (*info->mutable_metrics())["rollout/" + metric.name] = metric.value;
    }
    info->set_policy_version(engine().version());
    if (http_ != nullptr) {
      info->set_http_url(http_->url());
      info->set_served_model_name(config_.rollout().http().served_model_name());
    }
    if (const std::optional<CallIdentity> last = guard_.last_applied()) *info->mutable_last_applied() = *last;
    return absl::OkStatus();
  }

  absl::Status CheckVersion(uint64_t wanted) const override {
    if (wanted == engine().version()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("header.policy_version is ", wanted, ", but the weights in use are version ", engine().version()));
  }

  // ---- Generation, which HTTP asks for too.

  absl::Status CheckWeights() const override {
    // What is in the folder comes back when the rollout wakes up.
    if (engine().has_weights() || engine().ReadsAgain()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("the rollout has no weights: Sleep released those of version ",
                                                      engine().version(), ", and no update has been committed since"));
  }

  absl::Status CheckHealth() const override {
    if (engine().has_weights()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the weights of version ", engine().version(), " are released"));
  }

  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  int64_t vocab_size() const override { return engine().vocab_size(); }
  int64_t max_model_len() const override { return engine().max_model_len(); }
  int64_t max_guest_sequences() const override { return dispatcher_.max_guest_sequences(); }
  int64_t max_guest_calls() const override { return dispatcher_.max_guest_calls(); }
  std::set<int32_t> eos_token_ids() const override {
    return {engine().eos_token_ids().begin(), engine().eos_token_ids().end()};
  }
  std::set<int32_t> stop_token_ids() const override {
    return {config_.rollout().stop_token_ids().begin(), config_.rollout().stop_token_ids().end()};
  }

  absl::Status Check(const SamplingParams& sampling, const std::vector<Prompt>& prompts) const override {
    QUARTET_RETURN_IF_ERROR(engine().Check(sampling));
    std::set<uint64_t> seen;
    for (const Prompt& prompt : prompts) {
      GenerationTask task;
      task.prompt_index = prompt.index();
      task.ids.assign(prompt.ids().begin(), prompt.ids().end());
      QUARTET_RETURN_IF_ERROR(engine().Check(sampling, task));
      if (!seen.insert(prompt.index()).second) {
        return absl::InvalidArgumentError(absl::StrCat("prompt ", prompt.index(), ": its index comes twice"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<BlockingCall>> Begin(const GenerateHeader& header, std::vector<Prompt> prompts,
                                                      std::stop_token gone, uint64_t* version) override {
    const auto begin = [this, version] {
      *version = engine().version();
      return absl::OkStatus();
    };
    return BlockingCall::Begin(dispatcher_, header, std::move(prompts), begin, std::move(gone),
                               Dispatcher::Origin::kGuest);
  }

  absl::StatusOr<GenerationState> State(const Deadline& deadline) override {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RolloutRankInfo> ranks, AskRanks(deadline));
    return Summarize(ranks);
  }

  absl::Status DoBeginUpdate(const Deadline& deadline, const WeightManifest& manifest, BeginUpdateReply* reply) {
    const std::lock_guard lock(update_mutex_);
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RolloutRankInfo> ranks, AskRanks(deadline));
    QUARTET_RETURN_IF_ERROR(CheckKind(manifest, engine().adapters(), BaseHash(ranks)));
    const bool released = !engine().has_weights() && !engine().ReadsAgain();
    QUARTET_RETURN_IF_ERROR(CheckManifest(manifest, engine().tensors(), engine().version(), released));
    verified_version_ = 0;
    absl::StatusOr<uint64_t> bytes = PullAndVerify(deadline, manifest);
    if (!bytes.ok()) {
      // The call's own deadline may have passed.
      if (const absl::Status dropped = DropStaged(Deadline::In(absl::Seconds(30))); !dropped.ok()) {
        QUARTET_LOG(kWarning) << "cannot drop the staged weights: " << dropped.ToString();
      }
      return bytes.status();
    }
    verified_version_ = manifest.version();
    reply->set_bytes_pulled(*bytes);
    return absl::OkStatus();
  }

  // Of the model that adapters belong to, whose terms the ranks of an engine have.
  uint64_t BaseHash(const std::vector<RolloutRankInfo>& ranks) const {
    uint64_t hash = 0;
    for (int rank = 0; rank < worker_.ranks_per_engine(); ++rank) hash += ranks[rank].base_hash();
    return hash;
  }

  // That what ranks have read again, if they have, is the model that their adapters belong to.
  absl::Status CheckReadAgain(const std::vector<WakeSummary>& woken, uint64_t base_hash) const {
    if (!woken[0].has_base_hash()) return absl::OkStatus();
    const size_t together = worker_.ranks_per_model();
    for (size_t first = 0; first < woken.size(); first += together) {
      uint64_t hash = 0;
      for (size_t rank = first; rank < first + together; ++rank) hash += woken[rank].base_hash();
      if (hash == base_hash) continue;
      return absl::FailedPreconditionError(absl::StrCat("the model in ", engine().adapters()->base_folder,
                                                        " is another than when the rollout was started (its hash is ",
                                                        HashText(hash), ", it was ", HashText(base_hash),
                                                        "): the adapters that it has do not belong to it"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> PullAndVerify(const Deadline& deadline, const WeightManifest& manifest) {
    PullHeader header;
    *header.mutable_manifest() = manifest;
    if (!deadline.never()) header.set_timeout_ms(absl::ToInt64Milliseconds(deadline.left()));
    QUARTET_ASSIGN_OR_RETURN(const std::vector<PullSummary> pulled,
                             RunOnAll<PullSummary>(group_, kPullMethod, header, deadline));
    std::map<std::string, int> copies_of;
    for (const ParameterSpec& tensor : engine().tensors()) copies_of[tensor.name] = worker_.copies(tensor);
    std::vector<int> copies;
    for (const TensorEntry& tensor : manifest.tensors()) copies.push_back(copies_of.at(tensor.name()));
    uint64_t bytes = 0;
    std::vector<std::vector<uint64_t>> hashes;
    for (const PullSummary& rank : pulled) {
      if (rank.hashes_size() != manifest.tensors_size()) return absl::InternalError("a rank hashed other tensors");
      bytes += rank.bytes();
      hashes.emplace_back(rank.hashes().begin(), rank.hashes().end());
    }
    QUARTET_RETURN_IF_ERROR(CheckHashes(manifest, hashes, worker_.ranks_per_model(), copies));
    return bytes;
  }

  absl::Status DoCommitUpdate(grpc::ServerContext* context, uint64_t version, CommitUpdateReply* reply) {
    const std::lock_guard lock(update_mutex_);
    if (version == 0 || version != verified_version_) {
      return absl::FailedPreconditionError(
          absl::StrCat("version ", version, " is not staged and verified; ",
                       verified_version_ == 0 ? "nothing is" : absl::StrCat("version ", verified_version_, " is"),
                       ", and version ", engine().version(), " is in use"));
    }
    QUARTET_RETURN_IF_ERROR(FailPoint("rollout.commit"));
    VersionHeader header;
    header.set_version(version);
    std::optional<Stopwatch> pause;
    QUARTET_RETURN_IF_ERROR(dispatcher_.Quietly(GoneOf(context), [&] {
      pause.emplace();
      const std::lock_guard weights_lock(weights_mutex_);
      return RunOnAll<Nothing>(group_, kCommitMethod, header, DeadlineOf(*context)).status();
    }));
    verified_version_ = 0;
    reply->set_policy_version(version);
    reply->set_pause_seconds(pause->Seconds());
    QUARTET_LOG(kInfo) << "weights are version " << version << " now";
    return absl::OkStatus();
  }

  // Whether forwards could be made.
  absl::Status CheckCanGoOn() const {
    if (asleep_) {
      return absl::FailedPreconditionError(
          engine().has_weights() ? "the rollout sleeps, without its KV cache; WakeUp comes first"
                                 : "the rollout sleeps, without KV cache and weights; WakeUp comes first");
    }
    return CheckWeights();
  }

  absl::Status DoSleep(grpc::ServerContext* context, int32_t level, SleepReply* reply) {
    if (level < 0 || level > 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("level is ", level, "; allowed: 1 (releases the KV cache; so does 0), 2 (the weights, too)"));
    }
    const std::lock_guard lock(sleep_mutex_);
    QUARTET_RETURN_IF_ERROR(dispatcher_.Pause(PauseRequest::KEEP, GoneOf(context)).status());
    asleep_ = true;
    QUARTET_ASSIGN_OR_RETURN(const std::vector<SleepReply> ranks,
                             RunOnAll<SleepReply>(group_, kSleepMethod, SleepHeader(level), DeadlineOf(*context)));
    for (const SleepReply& rank : ranks) reply->set_bytes_released(reply->bytes_released() + rank.bytes_released());
    return absl::OkStatus();
  }

  absl::Status DoWakeUp(const Deadline& deadline) {
    const std::lock_guard lock(sleep_mutex_);
    if (!asleep_) return absl::OkStatus();
    const std::lock_guard weights_lock(weights_mutex_);
    const int32_t level = engine().has_weights() ? 1 : 2;
    const auto wake = [&]() -> absl::Status {
      QUARTET_ASSIGN_OR_RETURN(const std::vector<RolloutRankInfo> ranks, AskRanks(deadline));
      QUARTET_ASSIGN_OR_RETURN(const std::vector<WakeSummary> summaries,
                               RunOnAll<WakeSummary>(group_, kWakeMethod, Nothing(), deadline));
      return CheckReadAgain(summaries, BaseHash(ranks));
    };
    absl::Status woken = wake();
    if (woken.ok()) {
      asleep_ = false;
      return woken;
    }
    // Those that have their memory give it back; the call's own deadline may have passed.
    if (const absl::Status slept =
            RunOnAll<SleepReply>(group_, kSleepMethod, SleepHeader(level), Deadline::In(absl::Seconds(30))).status();
        !slept.ok()) {
      QUARTET_LOG(kWarning) << "cannot go on sleeping: " << slept.ToString();
    }
    return woken;
  }

  static SleepRequest SleepHeader(int32_t level) {
    SleepRequest header;
    header.set_level(level);
    return header;
  }

  absl::Status DropStaged(const Deadline& deadline) {
    verified_version_ = 0;
    return RunOnAll<Nothing>(group_, kAbortMethod, Nothing(), deadline).status();
  }

  const RunConfig config_;
  const RankContext& context_;
  RankGroup& group_;
  LeaderStatus leader_;
  std::unique_ptr<Tokenizer> tokenizer_;  // or null
  int64_t rows_ = 0;                      // of the embedding
  RankWorker worker_;
  ReplayGuard guard_;
  Dispatcher dispatcher_;  // on the leader
  RankLinks links_;
  GenerateCalls generate_calls_;     // on the leader
  std::unique_ptr<HttpFront> http_;  // of the leader, or null

  // The leader: one update call at a time.
  std::mutex update_mutex_;
  uint64_t verified_version_ = 0;  // staged on all ranks; 0: none

  // The leader: one of Pause, Resume, Sleep and WakeUp at a time.
  std::mutex sleep_mutex_;
  std::atomic<bool> asleep_ = false;

  // The leader: no commit between a WakeUp and its undoing.
  std::mutex weights_mutex_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankService>> CreateRolloutService(const RunConfig& config, const RankContext& context,
                                                                  RankGroup& group) {
  QUARTET_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials, MakeChannelCredentials(config.tls()));
  auto service = std::make_unique<RolloutService>(config, context, group, std::move(credentials));
  QUARTET_RETURN_IF_ERROR(service->StartHttp());
  return service;
}

}  // namespace quartet

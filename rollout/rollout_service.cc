// The leader checks every call and hands it to the dispatcher, whose work goes to the ranks of each engine: to itself,
// and to the others through pipes. Forwards and commits run on the executor threads, commits only while no rank makes a
// forward; pulling weights and describing the service run beside them.

#include "rollout/rollout_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
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
#include "core/tokenizer/tokenizer.h"
#include "proto/rollout.grpc.pb.h"
#include "rollout/dispatcher.h"
#include "rollout/engine.h"
#include "rollout/generation.h"
#include "rollout/http/openai_front.h"
#include "rollout/rank_part.h"
#include "rollout/rollout_rank.pb.h"
#include "rollout/stop_strings.h"
#include "rollout/weight_receiver.h"

namespace quartet {
namespace {

absl::Time DeadlineOf(const grpc::ServerContext& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture() : absl::FromChrono(deadline);
}

class RolloutService final : public RankService, private Rollout::Service, private Generation {
 public:
  RolloutService(const RunConfig& config, const RankContext& context, RankGroup& group,
                 std::shared_ptr<grpc::ChannelCredentials> credentials)
      : config_(config),
        context_(context),
        group_(group),
        part_(config_, context, group, std::move(credentials)),
        dispatcher_({.ranks = context.world_size,
                     .ranks_per_engine = part_.ranks_per_engine(),
                     .lockstep = part_.lockstep(),
                     .max_num_seqs = config.rollout().max_num_seqs(),
                     .max_waiting = config.rollout().max_waiting()}) {}

  ~RolloutService() override {
    dispatcher_.Close();
    part_.Close();
    http_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

  grpc::Service* grpc_service() override { return this; }
  bool IsReady() const override { return engine().has_weights(); }
  void EndCalls(const absl::Status& status) override { dispatcher_.Fail(status); }

  // On the leader, where the configuration says so; answers UNAVAILABLE until Load.
  absl::Status StartHttp() {
    if (context_.rank != 0 || !config_.rollout().has_http()) return absl::OkStatus();
    QUARTET_ASSIGN_OR_RETURN(http_, HttpFront::Start(config_.rollout().http(), this));
    return absl::OkStatus();
  }

  absl::Status Load() override {
    RolloutEngineOptions options = RolloutOptions(config_.rollout());
    if (std::filesystem::exists(options.model + "/tokenizer.json")) {
      QUARTET_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Load(options.model));
      options.watch_stop_strings = WatchWith(*tokenizer_);
    } else if (config_.rollout().has_http()) {
      return absl::FailedPreconditionError(absl::StrCat("rollout.http is set, but ", options.model,
                                                        " has no tokenizer.json to read and write text with"));
    }
    QUARTET_RETURN_IF_ERROR(part_.Load(options));
    if (group_.is_leader()) QUARTET_RETURN_IF_ERROR(StartLeading());
    loaded_ = true;
    if (http_ != nullptr) QUARTET_LOG(kInfo) << "HTTP on " << http_->address();
    return absl::OkStatus();
  }

 private:
  const RolloutEngine& engine() const { return part_.engine(); }

  // ---- The public service, on the leader.

  grpc::Status GetInfo(grpc::ServerContext* context, const GetInfoRequest*, ServiceInfo* info) override {
    return ToGrpc(DoGetInfo(DeadlineOf(*context), info));
  }
  grpc::Status Generate(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<GenerateReply, GenerateRequest>* stream) override {
    return ToGrpc(DoGenerate(context, stream));
  }
  grpc::Status Pause(grpc::ServerContext* context, const PauseRequest* request, PauseReply* reply) override {
    return ToGrpc(Once("Pause", *request, reply, DeadlineOf(*context), [&]() -> absl::Status {
      if (request->mode() == PauseRequest::MODE_UNSPECIFIED || !PauseRequest::Mode_IsValid(request->mode())) {
        return absl::InvalidArgumentError(
            absl::StrCat("mode is ", static_cast<int>(request->mode()), "; allowed: KEEP (1), ABORT (2), WAIT (3)"));
      }
      const std::lock_guard lock(sleep_mutex_);
      if (request->mode() == PauseRequest::WAIT) QUARTET_RETURN_IF_ERROR(CheckCanGoOn());
      QUARTET_ASSIGN_OR_RETURN(const int64_t kept, dispatcher_.Pause(request->mode(), GoneOf(context)));
      reply->set_sequences_in_flight(kept);
      return absl::OkStatus();
    }));
  }
  grpc::Status Resume(grpc::ServerContext* context, const ResumeRequest* request, ResumeReply* reply) override {
    return ToGrpc(Once("Resume", *request, reply, DeadlineOf(*context), [&]() -> absl::Status {
      const std::lock_guard lock(sleep_mutex_);
      QUARTET_RETURN_IF_ERROR(CheckCanGoOn());
      dispatcher_.Resume();
      return absl::OkStatus();
    }));
  }
  grpc::Status Sleep(grpc::ServerContext* context, const SleepRequest* request, SleepReply* reply) override {
    return ToGrpc(Once("Sleep", *request, reply, DeadlineOf(*context),
                       [&] { return DoSleep(context, request->level(), reply); }));
  }
  grpc::Status WakeUp(grpc::ServerContext* context, const WakeUpRequest* request, WakeUpReply* reply) override {
    return ToGrpc(
        Once("WakeUp", *request, reply, DeadlineOf(*context), [&] { return DoWakeUp(DeadlineOf(*context)); }));
  }
  grpc::Status BeginUpdate(grpc::ServerContext* context, const BeginUpdateRequest* request,
                           BeginUpdateReply* reply) override {
    return ToGrpc(Once("BeginUpdate", *request, reply, DeadlineOf(*context),
                       [&] { return DoBeginUpdate(DeadlineOf(*context), request->manifest(), reply); }));
  }
  grpc::Status CommitUpdate(grpc::ServerContext* context, const CommitUpdateRequest* request,
                            CommitUpdateReply* reply) override {
    return ToGrpc(Once("CommitUpdate", *request, reply, DeadlineOf(*context),
                       [&] { return DoCommitUpdate(context, request->version(), reply); }));
  }
  grpc::Status AbortUpdate(grpc::ServerContext* context, const AbortUpdateRequest* request,
                           AbortUpdateReply* reply) override {
    return ToGrpc(Once("AbortUpdate", *request, reply, DeadlineOf(*context), [&] {
      const std::lock_guard lock(update_mutex_);
      return DropStaged(DeadlineOf(*context));
    }));
  }

  // Whether whoever made the call has closed it, or its deadline has passed.
  static std::function<bool()> GoneOf(grpc::ServerContext* context) {
    return [context] { return context->IsCancelled(); };
  }

  absl::Status CheckServing() const override {
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

  absl::StatusOr<std::vector<RolloutRankInfo>> AskRanks(absl::Time deadline) {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RankOutput> outputs,
                             group_.Run(kInfoMethod, ForAll(Nothing()), deadline));
    std::vector<RolloutRankInfo> ranks(outputs.size());
    for (size_t rank = 0; rank < outputs.size(); ++rank) {
      if (!ranks[rank].ParseFromString(outputs[rank].summary)) {
        return absl::InternalError("unreadable RolloutRankInfo");
      }
    }
    return ranks;
  }

  GenerationState Summarize(const std::vector<RolloutRankInfo>& ranks) const {
    GenerationState state;
    for (size_t rank = 0; rank < ranks.size(); rank += part_.ranks_per_engine()) Accumulate(ranks[rank], &state.sum);
    state.policy_version = engine().version();
    state.paused = dispatcher_.paused();
    state.asleep = asleep_;
    state.weights_released = !engine().has_weights();
    return state;
  }

  absl::Status DoGetInfo(absl::Time deadline, ServiceInfo* info) {
    QUARTET_RETURN_IF_ERROR(CheckServing());
    QUARTET_ASSIGN_OR_RETURN(std::vector<RolloutRankInfo> ranks, AskRanks(deadline));
    SetMetrics(Summarize(ranks), info);
    for (RolloutRankInfo& rank : ranks) *info->add_ranks() = std::move(*rank.mutable_info());
    info->set_service("rollout");
    info->set_protocol_version(kProtocolVersion);
    (*info->mutable_vocab_size())["model"] = static_cast<int32_t>(engine().vocab_size());
    info->set_policy_version(engine().version());
    info->set_max_model_len(config_.rollout().max_model_len());
    if (const std::optional<CallIdentity> last = guard_.last_applied()) *info->mutable_last_applied() = *last;
    return absl::OkStatus();
  }

  static void Accumulate(const RolloutRankInfo& rank, RolloutRankInfo* sum) {
    sum->set_running(sum->running() + rank.running());
    sum->set_waiting(sum->waiting() + rank.waiting());
    sum->set_blocks(sum->blocks() + rank.blocks());
    sum->set_blocks_in_use(sum->blocks_in_use() + rank.blocks_in_use());
    sum->set_held_places(sum->held_places() + rank.held_places());
    sum->set_empty_places(sum->empty_places() + rank.empty_places());
    sum->set_preemptions(sum->preemptions() + rank.preemptions());
    sum->set_prefill_tokens(sum->prefill_tokens() + rank.prefill_tokens());
    sum->set_generated_tokens(sum->generated_tokens() + rank.generated_tokens());
    sum->set_admitted_tokens(sum->admitted_tokens() + rank.admitted_tokens());
    sum->set_cached_tokens(sum->cached_tokens() + rank.cached_tokens());
    sum->set_prefill_tokens_per_second(sum->prefill_tokens_per_second() + rank.prefill_tokens_per_second());
    sum->set_generated_tokens_per_second(sum->generated_tokens_per_second() + rank.generated_tokens_per_second());
  }

  static void SetMetrics(const GenerationState& state, ServiceInfo* info) {
    const RolloutRankInfo& sum = state.sum;
    const auto share = [](int64_t part, int64_t whole) {
      return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
    };
    auto& metrics = *info->mutable_metrics();
    metrics["rollout/running"] = static_cast<double>(sum.running());
    metrics["rollout/waiting"] = static_cast<double>(sum.waiting());
    metrics["rollout/paused"] = state.paused ? 1 : 0;
    metrics["rollout/asleep"] = state.asleep ? 1 : 0;
    metrics["rollout/weights_released"] = state.weights_released ? 1 : 0;
    metrics["rollout/kv_cache_usage"] = share(sum.blocks_in_use(), sum.blocks());
    metrics["rollout/kv_cache_waste"] = share(sum.empty_places(), sum.held_places());
    metrics["rollout/prefix_cache_hit_rate"] = share(sum.cached_tokens(), sum.admitted_tokens());
    metrics["rollout/preemptions"] = static_cast<double>(sum.preemptions());
    metrics["rollout/prefill_tokens"] = static_cast<double>(sum.prefill_tokens());
    metrics["rollout/generated_tokens"] = static_cast<double>(sum.generated_tokens());
    metrics["rollout/prefill_tokens_per_second"] = sum.prefill_tokens_per_second();
    metrics["rollout/generated_tokens_per_second"] = sum.generated_tokens_per_second();
  }

  absl::Status CheckVersion(uint64_t wanted) const {
    if (wanted == engine().version()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("header.policy_version is ", wanted, ", but the weights in use are version ", engine().version()));
  }

  // ---- Generation, which HTTP asks for too.

  absl::Status CheckWeights() const override {
    // Those of version 0 come back when the rollout wakes up.
    if (engine().has_weights() || engine().version() == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("the rollout has no weights: Sleep released those of version ",
                                                      engine().version(), ", and no update has been committed since"));
  }

  absl::Status CheckHealth() const override {
    if (engine().has_weights()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the weights of version ", engine().version(), " are released"));
  }

  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  int64_t vocab_size() const override { return engine().vocab_size(); }
  int64_t max_model_len() const override { return config_.rollout().max_model_len(); }
  int64_t max_sequences() const override { return dispatcher_.max_sequences(); }
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

  absl::StatusOr<std::unique_ptr<Dispatcher::Running>> Begin(const GenerateHeader& header,
                                                             const std::vector<Prompt>& prompts,
                                                             const std::function<bool()>& gone,
                                                             uint64_t* version) override {
    const auto begin = [&] {
      *version = engine().version();
      return absl::OkStatus();
    };
    return dispatcher_.Begin(header, prompts, begin, gone);
  }

  absl::StatusOr<GenerationState> State(absl::Time deadline) override {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RolloutRankInfo> ranks, AskRanks(deadline));
    return Summarize(ranks);
  }

  absl::Status DoGenerate(grpc::ServerContext* context,
                          grpc::ServerReaderWriter<GenerateReply, GenerateRequest>* stream) {
    QUARTET_RETURN_IF_ERROR(CheckServing());
    QUARTET_RETURN_IF_ERROR(CheckWeights());
    std::optional<GenerateHeader> header;
    std::vector<Prompt> prompts;
    QUARTET_RETURN_IF_ERROR(ReadBatch<GenerateRequest>(stream, &header, &prompts));
    QUARTET_RETURN_IF_ERROR(Check(header->sampling(), prompts));
    QUARTET_RETURN_IF_ERROR(FailPoint("rollout.generate"));
    const auto begin = [&] { return CheckVersion(header->policy_version()); };
    const absl::Time start = absl::Now();
    int64_t tokens = 0;
    int64_t sequences = 0;
    const auto reply = [&](const GenerateReply& one) {
      if (one.has_sequence()) {
        ++sequences;
        tokens += one.sequence().log_probs_size();
      }
      return stream->Write(one);
    };
    QUARTET_RETURN_IF_ERROR(dispatcher_.Generate(*header, prompts, begin, GoneOf(context), reply));
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    QUARTET_LOG(kInfo) << "generated " << sequences << " sequences, " << tokens << " tokens in " << seconds << " s ("
                       << static_cast<double>(tokens) / seconds << " tokens/s)";
    return absl::OkStatus();
  }

  absl::Status DoBeginUpdate(absl::Time deadline, const WeightManifest& manifest, BeginUpdateReply* reply) {
    const std::lock_guard lock(update_mutex_);
    QUARTET_RETURN_IF_ERROR(
        CheckManifest(manifest, engine().tensors(), engine().version(), /*released=*/!engine().has_weights()));
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
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RankOutput> outputs, group_.Run(kPullMethod, ForAll(header), deadline));
    std::set<std::string> divided;
    for (const ParameterSpec& tensor : engine().tensors()) {
      if (part_.divides(tensor)) divided.insert(tensor.name);
    }
    std::vector<bool> is_divided;
    for (const TensorEntry& tensor : manifest.tensors()) is_divided.push_back(divided.count(tensor.name()) > 0);
    uint64_t bytes = 0;
    std::vector<std::vector<uint64_t>> hashes;
    for (size_t rank = 0; rank < outputs.size(); ++rank) {
      PullSummary summary;
      if (!summary.ParseFromString(outputs[rank].summary) || summary.hashes_size() != manifest.tensors_size()) {
        return absl::InternalError(absl::StrCat("rank ", rank, ": unreadable PullSummary"));
      }
      bytes += summary.bytes();
      hashes.emplace_back(summary.hashes().begin(), summary.hashes().end());
    }
    QUARTET_RETURN_IF_ERROR(CheckHashes(manifest, hashes, part_.ranks_per_model(), is_divided));
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
    QUARTET_RETURN_IF_ERROR(dispatcher_.Quietly(GoneOf(context), [&] {
      const std::lock_guard weights_lock(weights_mutex_);
      return group_.Run(kCommitMethod, ForAll(header), DeadlineOf(*context)).status();
    }));
    verified_version_ = 0;
    reply->set_policy_version(version);
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
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RankOutput> outputs,
                             group_.Run(kSleepMethod, ForAll(SleepHeader(level)), DeadlineOf(*context)));
    uint64_t released = 0;
    for (const RankOutput& output : outputs) {
      SleepReply rank;
      if (!rank.ParseFromString(output.summary)) return absl::InternalError("unreadable SleepReply");
      released += rank.bytes_released();
    }
    reply->set_bytes_released(released);
    return absl::OkStatus();
  }

  absl::Status DoWakeUp(absl::Time deadline) {
    const std::lock_guard lock(sleep_mutex_);
    if (!asleep_) return absl::OkStatus();
    const std::lock_guard weights_lock(weights_mutex_);
    const int32_t level = engine().has_weights() ? 1 : 2;
    absl::Status woken = group_.Run(kWakeMethod, ForAll(Nothing()), deadline).status();
    if (woken.ok()) {
      asleep_ = false;
      return woken;
    }
    // Those that have their memory give it back; the call's own deadline may have passed.
    if (const absl::Status slept =
            group_.Run(kSleepMethod, ForAll(SleepHeader(level)), absl::Now() + absl::Seconds(30)).status();
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

  absl::Status DropStaged(absl::Time deadline) {
    verified_version_ = 0;
    return group_.Run(kAbortMethod, ForAll(Nothing()), deadline).status();
  }

  // ---- Work to the ranks, and their answers back.

  absl::Status StartLeading() {
    pipes_.resize(context_.world_size);
    for (int rank = 1; rank < context_.world_size; ++rank) {
      QUARTET_ASSIGN_OR_RETURN(pipes_[rank], group_.OpenPipe(rank, kWorkPipe));
    }
    for (int rank = 1; rank < context_.world_size; ++rank) threads_.emplace_back([this, rank] { Listen(rank); });
    for (int group = 0; group < dispatcher_.groups(); ++group) threads_.emplace_back([this, group] { Supply(group); });
    threads_.emplace_back(
        [this] { part_.Work([this](RankEvents events) { dispatcher_.Answer(0, std::move(events)); }); });
    return absl::OkStatus();
  }

  // Takes the work of engines that step together to their ranks.
  void Supply(int group) {
    std::vector<Dispatcher::Works> works;
    while (dispatcher_.Take(group, &works)) {
      for (int rank = 0; rank < context_.world_size; ++rank) {
        for (const RankWork& work : works[dispatcher_.engine_of(rank)]) {
          if (rank == 0) {
            part_.Put(work);
          } else if (!pipes_[rank]->Write(work.SerializeAsString())) {
            return;
          }
        }
      }
    }
  }

  // Takes one follower's answers.
  void Listen(int rank) {
    std::string message;
    while (pipes_[rank]->Read(&message)) {
      RankEvents events;
      if (!events.ParseFromString(message)) {
        group_.Break(absl::InternalError(absl::StrCat("rank ", rank, ": unreadable RankEvents")));
        return;
      }
      dispatcher_.Answer(rank, std::move(events));
    }
    dispatcher_.Fail(absl::UnavailableError(absl::StrCat("rank ", rank, " (", group_.endpoints()[rank], ") is gone")));
  }

  const RunConfig config_;
  const RankContext& context_;
  RankGroup& group_;
  std::unique_ptr<Tokenizer> tokenizer_;  // or null
  RankPart part_;
  std::atomic<bool> loaded_ = false;  // the engine may be used
  ReplayGuard guard_;
  Dispatcher dispatcher_;                         // on the leader
  std::vector<std::shared_ptr<RankPipe>> pipes_;  // of the leader, by rank; none to itself
  std::vector<std::thread> threads_;              // of the leader, between dispatcher_ and the ranks
  std::unique_ptr<HttpFront> http_;               // of the leader, or null

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

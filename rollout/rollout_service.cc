// The leader checks every call and hands it to the dispatcher, whose work goes to each rank's engine: its own, and
// those of the others through pipes. Forwards and commits run on the executor threads, commits only while no rank makes
// a forward; pulling weights and describing the service run beside them.

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
#include "core/training/rank_info.h"
#include "core/zero/catch_exceptions.h"
#include "proto/rollout.grpc.pb.h"
#include "rollout/dispatcher.h"
#include "rollout/engine.h"
#include "rollout/rank_worker.h"
#include "rollout/rollout_rank.pb.h"
#include "rollout/stop_strings.h"
#include "rollout/weight_receiver.h"

namespace quartet {
namespace {

constexpr char kPull[] = "rollout.pull";
constexpr char kCommit[] = "rollout.commit";
constexpr char kAbort[] = "rollout.abort";
constexpr char kSleep[] = "rollout.sleep";
constexpr char kWake[] = "rollout.wake";
constexpr char kInfo[] = "rollout.info";

constexpr char kWork[] = "rollout.work";

absl::Time DeadlineOf(const grpc::ServerContext& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture() : absl::FromChrono(deadline);
}

class RolloutService final : public RankService, private Rollout::Service {
 public:
  RolloutService(const RunConfig& config, const RankContext& context, RankGroup& group,
                 std::shared_ptr<grpc::ChannelCredentials> credentials)
      : config_(config),
        context_(context),
        group_(group),
        credentials_(std::move(credentials)),
        dispatcher_({.ranks = context.world_size,
                     .lockstep = sharded(),
                     .max_num_seqs = config.rollout().max_num_seqs(),
                     .max_waiting = config.rollout().max_waiting()}),
        worker_(sharded()) {
    group.RegisterPipe(kWork, [this](RankPipe& pipe) { Follow(pipe); });
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
    RegisterTyped<Nothing, Nothing, SleepReply, Nothing>(
        group, kSleep, RankGroup::Kind::kLocal, [this](const auto&, const auto&, auto* reply, auto*) {
          const int64_t before = ledger_.current(MemoryCategory::kKvCache);
          engine_->Sleep();
          reply->set_bytes_released(before - ledger_.current(MemoryCategory::kKvCache));
          return absl::OkStatus();
        });
    RegisterTyped<Nothing, Nothing, Nothing, Nothing>(
        group, kWake, RankGroup::Kind::kLocal,
        [this](const auto&, const auto&, auto*, auto*) { return engine_->Wake(); });
    RegisterTyped<Nothing, Nothing, RolloutRankInfo, Nothing>(group, kInfo, RankGroup::Kind::kConcurrent,
                                                              [this](const auto&, const auto&, auto* info, auto*) {
                                                                *info = InfoHere();
                                                                return absl::OkStatus();
                                                              });
  }

  ~RolloutService() override {
    dispatcher_.Close();
    for (std::thread& thread : threads_) thread.join();
  }

  grpc::Service* grpc_service() override { return this; }

  absl::Status Load() override {
    RolloutEngineOptions options = RolloutOptions(config_.rollout());
    if (std::filesystem::exists(options.model + "/tokenizer.json")) {
      QUARTET_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Load(options.model));
      options.watch_stop_strings = WatchWith(*tokenizer_);
    }
    SetBudgets(context_, &ledger_);
    QUARTET_ASSIGN_OR_RETURN(engine_, RolloutEngine::Load(options, context_, &ledger_));
    if (group_.is_leader()) QUARTET_RETURN_IF_ERROR(StartLeading());
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
      if (request->mode() == PauseRequest::WAIT) QUARTET_RETURN_IF_ERROR(CheckAwake());
      QUARTET_ASSIGN_OR_RETURN(const int64_t kept, dispatcher_.Pause(request->mode(), GoneOf(context)));
      reply->set_sequences_in_flight(kept);
      return absl::OkStatus();
    }));
  }
  grpc::Status Resume(grpc::ServerContext* context, const ResumeRequest* request, ResumeReply* reply) override {
    return ToGrpc(Once("Resume", *request, reply, DeadlineOf(*context), [&]() -> absl::Status {
      const std::lock_guard lock(sleep_mutex_);
      QUARTET_RETURN_IF_ERROR(CheckAwake());
      dispatcher_.Resume();
      return absl::OkStatus();
    }));
  }
  grpc::Status Sleep(grpc::ServerContext* context, const SleepRequest* request, SleepReply* reply) override {
    return ToGrpc(Once("Sleep", *request, reply, DeadlineOf(*context), [&] { return DoSleep(context, reply); }));
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
    RolloutRankInfo sum;
    for (const RankOutput& output : outputs) {
      RolloutRankInfo rank;
      if (!rank.ParseFromString(output.summary)) return absl::InternalError("unreadable RolloutRankInfo");
      *info->add_ranks() = std::move(*rank.mutable_info());
      rank.clear_info();
      Accumulate(rank, &sum);
    }
    SetMetrics(sum, info);
    info->set_service("rollout");
    info->set_protocol_version(kProtocolVersion);
    (*info->mutable_vocab_size())["model"] = static_cast<int32_t>(engine_->vocab_size());
    info->set_policy_version(engine_->version());
    info->set_max_model_len(config_.rollout().max_model_len());
    if (const std::optional<CallIdentity> last = guard_.last_applied()) *info->mutable_last_applied() = *last;
    return absl::OkStatus();
  }

  static void Accumulate(const RolloutRankInfo& rank, RolloutRankInfo* sum) {
    sum->set_running(sum->running() + rank.running());
    sum->set_waiting(sum->waiting() + rank.waiting());
    sum->set_blocks(sum->blocks() + rank.blocks());
    sum->set_blocks_in_use(sum->blocks_in_use() + rank.blocks_in_use());
    sum->set_preemptions(sum->preemptions() + rank.preemptions());
    sum->set_prefill_tokens(sum->prefill_tokens() + rank.prefill_tokens());
    sum->set_generated_tokens(sum->generated_tokens() + rank.generated_tokens());
    sum->set_admitted_tokens(sum->admitted_tokens() + rank.admitted_tokens());
    sum->set_cached_tokens(sum->cached_tokens() + rank.cached_tokens());
    sum->set_prefill_tokens_per_second(sum->prefill_tokens_per_second() + rank.prefill_tokens_per_second());
    sum->set_generated_tokens_per_second(sum->generated_tokens_per_second() + rank.generated_tokens_per_second());
  }

  void SetMetrics(const RolloutRankInfo& sum, ServiceInfo* info) const {
    const auto share = [](int64_t part, int64_t whole) {
      return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
    };
    auto& metrics = *info->mutable_metrics();
    metrics["rollout/running"] = static_cast<double>(sum.running());
    metrics["rollout/waiting"] = static_cast<double>(sum.waiting());
    metrics["rollout/paused"] = dispatcher_.paused() ? 1 : 0;
    metrics["rollout/asleep"] = asleep_ ? 1 : 0;
    metrics["rollout/kv_cache_usage"] = share(sum.blocks_in_use(), sum.blocks());
    metrics["rollout/prefix_cache_hit_rate"] = share(sum.cached_tokens(), sum.admitted_tokens());
    metrics["rollout/preemptions"] = static_cast<double>(sum.preemptions());
    metrics["rollout/prefill_tokens"] = static_cast<double>(sum.prefill_tokens());
    metrics["rollout/generated_tokens"] = static_cast<double>(sum.generated_tokens());
    metrics["rollout/prefill_tokens_per_second"] = sum.prefill_tokens_per_second();
    metrics["rollout/generated_tokens_per_second"] = sum.generated_tokens_per_second();
  }

  absl::Status CheckVersion(uint64_t wanted) const {
    if (wanted == engine_->version()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("header.policy_version is ", wanted, ", but the weights in use are version ", engine_->version()));
  }

  absl::Status DoGenerate(grpc::ServerContext* context,
                          grpc::ServerReaderWriter<GenerateReply, GenerateRequest>* stream) {
    QUARTET_RETURN_IF_ERROR(CheckServing());
    std::optional<GenerateHeader> header;
    std::vector<Prompt> prompts;
    QUARTET_RETURN_IF_ERROR(ReadBatch<GenerateRequest>(stream, &header, &prompts));
    const SamplingParams& sampling = header->sampling();
    QUARTET_RETURN_IF_ERROR(engine_->Check(sampling));
    std::set<uint64_t> seen;
    for (const Prompt& prompt : prompts) {
      GenerationTask task;
      task.prompt_index = prompt.index();
      task.ids.assign(prompt.ids().begin(), prompt.ids().end());
      QUARTET_RETURN_IF_ERROR(engine_->Check(sampling, task));
      if (!seen.insert(prompt.index()).second) {
        return absl::InvalidArgumentError(absl::StrCat("prompt ", prompt.index(), ": its index comes twice"));
      }
    }
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

  absl::Status DoCommitUpdate(grpc::ServerContext* context, uint64_t version, CommitUpdateReply* reply) {
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
    QUARTET_RETURN_IF_ERROR(dispatcher_.Quietly(
        GoneOf(context), [&] { return group_.Run(kCommit, ForAll(header), DeadlineOf(*context)).status(); }));
    verified_version_ = 0;
    reply->set_policy_version(version);
    QUARTET_LOG(kInfo) << "weights are version " << version << " now";
    return absl::OkStatus();
  }

  absl::Status CheckAwake() const {
    if (!asleep_) return absl::OkStatus();
    return absl::FailedPreconditionError("the rollout sleeps, without its KV cache; WakeUp comes first");
  }

  absl::Status DoSleep(grpc::ServerContext* context, SleepReply* reply) {
    const std::lock_guard lock(sleep_mutex_);
    QUARTET_RETURN_IF_ERROR(dispatcher_.Pause(PauseRequest::KEEP, GoneOf(context)).status());
    asleep_ = true;
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RankOutput> outputs,
                             group_.Run(kSleep, ForAll(Nothing()), DeadlineOf(*context)));
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
    absl::Status woken = group_.Run(kWake, ForAll(Nothing()), deadline).status();
    if (woken.ok()) {
      asleep_ = false;
      return woken;
    }
    // Those that have their memory give it back; the call's own deadline may have passed.
    if (const absl::Status slept = group_.Run(kSleep, ForAll(Nothing()), absl::Now() + absl::Seconds(30)).status();
        !slept.ok()) {
      QUARTET_LOG(kWarning) << "cannot go on sleeping: " << slept.ToString();
    }
    return woken;
  }

  absl::Status DropStaged(absl::Time deadline) {
    verified_version_ = 0;
    return group_.Run(kAbort, ForAll(Nothing()), deadline).status();
  }

  // ---- One rank's part.

  // Applies work on the executor thread; false where this rank is stopping.
  bool DoHere(const std::deque<RankWork>& works, const std::function<void(RankEvents)>& answer) {
    RankWorker::Result result;
    absl::Status status = group_.RunHere([&] {
      result = worker_.Do(*engine_, works);
      return absl::OkStatus();
    });
    for (RankEvents& events : result.answers) answer(std::move(events));
    if (sharded()) status.Update(result.status);
    if (!status.ok() && !absl::IsCancelled(status)) group_.Break(status);
    return status.ok();
  }

  absl::Status StartLeading() {
    std::vector<std::shared_ptr<RankPipe>> pipes(context_.world_size);
    for (int rank = 1; rank < context_.world_size; ++rank) {
      QUARTET_ASSIGN_OR_RETURN(pipes[rank], group_.OpenPipe(rank, kWork));
    }
    for (int rank = 1; rank < context_.world_size; ++rank) {
      threads_.emplace_back([this, rank, pipe = pipes[rank]] { Listen(rank, *pipe); });
      if (!sharded()) threads_.emplace_back([this, rank, pipe = pipes[rank]] { Supply(rank, *pipe); });
    }
    threads_.emplace_back([this, pipes] { sharded() ? LeadInLockstep(pipes) : LeadAlone(); });
    return absl::OkStatus();
  }

  void LeadAlone() {
    Dispatcher::Works works;
    while (dispatcher_.Take(0, /*wait=*/!worker_.busy(), &works)) {
      if (!DoHere(works, [this](RankEvents events) { dispatcher_.Answer(0, std::move(events)); })) return;
    }
  }

  // The followers make the forward that this rank makes: its gathers wait for them.
  void LeadInLockstep(const std::vector<std::shared_ptr<RankPipe>>& pipes) {
    std::vector<Dispatcher::Works> works;
    while (dispatcher_.TakeStep(&works)) {
      for (int rank = 1; rank < context_.world_size; ++rank) {
        for (const RankWork& work : works[rank]) pipes[rank]->Write(work.SerializeAsString());
      }
      if (!DoHere(works[0], [this](RankEvents events) { dispatcher_.Answer(0, std::move(events)); })) return;
    }
  }

  // Takes one follower's work to it.
  void Supply(int rank, RankPipe& pipe) {
    Dispatcher::Works works;
    while (dispatcher_.Take(rank, /*wait=*/true, &works)) {
      for (const RankWork& work : works) {
        if (!pipe.Write(work.SerializeAsString())) return;
      }
    }
  }

  // Takes one follower's answers.
  void Listen(int rank, RankPipe& pipe) {
    std::string message;
    while (pipe.Read(&message)) {
      RankEvents events;
      if (!events.ParseFromString(message)) {
        group_.Break(absl::InternalError(absl::StrCat("rank ", rank, ": unreadable RankEvents")));
        return;
      }
      dispatcher_.Answer(rank, std::move(events));
    }
    dispatcher_.Fail(absl::UnavailableError(absl::StrCat("rank ", rank, " (", group_.endpoints()[rank], ") is gone")));
  }

  // The follower's side, for as long as the leader lives.
  void Follow(RankPipe& pipe) {
    WorkInbox inbox;
    std::jthread reader([&] {
      std::string message;
      RankWork work;
      while (pipe.Read(&message) && work.ParseFromString(message)) inbox.Put(std::move(work));
      inbox.Close();
    });
    std::deque<RankWork> works;
    while (inbox.Take(/*wait=*/!worker_.busy(), &works)) {
      if (!DoHere(works, [&](const RankEvents& events) { pipe.Write(events.SerializeAsString()); })) return;
    }
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

  RolloutRankInfo InfoHere() const {
    RolloutRankInfo described;
    RankInfo& info = *described.mutable_info();
    info = DescribeRank(context_, ledger_);
    int64_t parameters = 0;
    for (const ParameterSpec& tensor : engine_->tensors()) parameters += tensor.numel();
    info.set_model_parameters(parameters);
    info.set_gathered_bytes_per_parameter(static_cast<int32_t>(DtypeSize(engine_->resident_dtype())));
    const RolloutEngineStats stats = engine_->stats();
    described.set_running(stats.running);
    described.set_waiting(stats.waiting);
    described.set_blocks(stats.blocks);
    described.set_blocks_in_use(stats.blocks_in_use);
    described.set_preemptions(stats.preemptions);
    described.set_prefill_tokens(stats.prefill_tokens);
    described.set_generated_tokens(stats.generated_tokens);
    described.set_admitted_tokens(stats.admitted_tokens);
    described.set_cached_tokens(stats.cached_tokens);
    described.set_prefill_tokens_per_second(stats.prefill_tokens_per_second);
    described.set_generated_tokens_per_second(stats.generated_tokens_per_second);
    return described;
  }

  const RunConfig config_;
  const RankContext& context_;
  RankGroup& group_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  Ledger ledger_;
  std::unique_ptr<Tokenizer> tokenizer_;  // or null; for stop strings
  std::unique_ptr<RolloutEngine> engine_;
  std::atomic<bool> loaded_ = false;  // engine_ may be used
  ReplayGuard guard_;
  Dispatcher dispatcher_;             // on the leader
  RankWorker worker_;                 // this rank's
  std::vector<std::thread> threads_;  // of the leader, between dispatcher_ and the ranks

  // The leader: one update call at a time.
  std::mutex update_mutex_;
  uint64_t verified_version_ = 0;  // staged on all ranks; 0: none

  // The leader: one of Pause, Resume, Sleep and WakeUp at a time.
  std::mutex sleep_mutex_;
  std::atomic<bool> asleep_ = false;

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

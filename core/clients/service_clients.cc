#include "core/clients/service_clients.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/base/time/loading.h"
#include "core/clients/connection.h"
#include "core/clients/replies.h"
#include "core/config/run_config.h"
#include "core/network/address.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/credentials.h"
#include "proto/critic_trainer.grpc.pb.h"
#include "proto/policy_trainer.grpc.pb.h"
#include "proto/rollout.grpc.pb.h"
#include "proto/scorer.grpc.pb.h"
#include "proto/trace.grpc.pb.h"

namespace quartet {
namespace {

// How long GetInfo, the first call to a service, goes on trying to connect: to one of this machine, and to one of a
// cluster, whose scheduler starts it beside the orchestrator, on hosts that may be busy.
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kClusterConnectTimeout = absl::Seconds(60);

// A trace is worth no more of a run's time.
constexpr absl::Duration kTraceTimeout = absl::Seconds(20);

// How often a service that loads its model is asked again.
constexpr absl::Duration kLoadingPoll = absl::Milliseconds(200);

template <typename Stub>
absl::StatusOr<SaveCheckpointReply> AskToSave(ServiceClient::Connection& connection,
                                              grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                           const SaveCheckpointRequest&,
                                                                           SaveCheckpointReply*),
                                              uint64_t step, const std::string& checkpoint_id, bool save_optimizer) {
  SaveCheckpointRequest request;
  *request.mutable_identity() = connection.NextIdentity(step);
  request.set_checkpoint_id(checkpoint_id);
  request.set_save_optimizer(save_optimizer);
  return Ask(connection, "SaveCheckpoint", method, request);
}

}  // namespace

ServiceClient::~ServiceClient() = default;
const std::string& ServiceClient::service() const { return connection_->service; }
const std::string& ServiceClient::address() const { return connection_->address; }

void ServiceClient::MoveTo(const std::string& address) {
  connection_->address = address;
  connection_->channel = MakeChannel(address, connection_->credentials);
  connection_->health_watch->MoveTo(connection_->channel);
}

bool ServiceClient::WaitForConnection() {
  const absl::StatusOr<HostPort> place = ParseHostPort(connection_->address);
  const bool is_here = !place.ok() || IsLoopback(place->host);
  const Deadline deadline =
      Deadline::In(std::min(is_here ? kConnectTimeout : kClusterConnectTimeout, connection_->timeout));
  while (!connection_->channel->WaitForConnected(FromNow(absl::Milliseconds(100)))) {
    if (deadline.passed() || !connection_->cancellation->status().ok()) return false;
  }
  return true;
}

absl::StatusOr<ServiceInfo> ServiceClient::AwaitInfo(const std::function<void(const std::string&)>& on_loading) {
  while (true) {
    absl::StatusOr<ServiceInfo> info = AskInfo();
    // UNAVAILABLE over a connection that stands is a service's own answer.
    if (!absl::IsUnavailable(info.status()) || !connection_->cancellation->status().ok() ||
        connection_->channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY) {
      if (info.ok()) return info;
      return connection_->Explain("GetInfo", info.status());
    }
    if (on_loading) on_loading(LoadingDetail(std::string(info.status().message())));
    absl::SleepFor(kLoadingPoll);
  }
}

absl::StatusOr<ServiceInfo> ServiceClient::GetInfo() {
  absl::StatusOr<ServiceInfo> info = AskInfo();
  if (info.ok()) return info;
  return connection_->Explain("GetInfo", info.status());
}

absl::StatusOr<ServiceInfo> ServiceClient::AskInfo() {
  // A first connection may fail by itself on a busy machine, or come a moment before the service listens. Where none
  // comes about, the call below says why.
  WaitForConnection();
  QUARTET_RETURN_IF_ERROR(connection_->CheckOwner());
  CallContext context(*connection_, "GetInfo");
  ServiceInfo info;
  QUARTET_RETURN_IF_ERROR(
      FromGrpc(connection_->get_info(connection_->channel, context.get(), GetInfoRequest(), &info)));
  connection_->incarnation->Follow(info.last_applied().epoch());
  return info;
}

absl::Status ServiceClient::StartTrace(int64_t origin) {
  CallContext context(*connection_, "", kTraceTimeout);
  StartTraceRequest request;
  request.set_origin(origin);
  StartTraceReply reply;
  return connection_->Explain("Trace.Start",
                              FromGrpc(Trace::NewStub(connection_->channel)->Start(context.get(), request, &reply)));
}

absl::StatusOr<int64_t> ServiceClient::TakeTrace(const std::function<absl::Status(const std::string&)>& on_events) {
  CallContext context(*connection_, "", kTraceTimeout);
  const auto stub = Trace::NewStub(connection_->channel);
  const auto stream = stub->Take(context.get(), TakeTraceRequest());
  TraceChunk chunk;
  absl::Status taken;
  while (stream->Read(&chunk)) {
    if (taken.ok()) taken = on_events(chunk.events());
  }
  QUARTET_RETURN_IF_ERROR(connection_->Explain("Trace.Take", FromGrpc(stream->Finish())));
  QUARTET_RETURN_IF_ERROR(taken);
  return chunk.dropped();
}

// --- rollout ---

absl::StatusOr<std::vector<GeneratedSequence>> RolloutClient::Generate(const GenerateHeader& header,
                                                                       const std::vector<Prompt>& prompts,
                                                                       const std::stop_token& give_up) {
  const auto ignore = [](const GeneratedSequence&) { return absl::OkStatus(); };
  return GenerateFirst(header, prompts, static_cast<int64_t>(prompts.size()), ignore, give_up);
}

absl::StatusOr<std::vector<GeneratedSequence>> RolloutClient::GenerateFirst(
    const GenerateHeader& header, const std::vector<Prompt>& prompts, int64_t first,
    const std::function<absl::Status(const GeneratedSequence&)>& on_sequence, const std::stop_token& give_up) {
  const auto wanted = static_cast<size_t>(first);
  QUARTET_CHECK(wanted <= prompts.size());
  const bool all = wanted == prompts.size();
  CallContext context(*connection_, "Generate");
  const std::stop_callback cancel(give_up, [&context] { context.get()->TryCancel(); });
  Rollout::Stub stub(connection_->channel);
  const auto stream = stub.Generate(context.get());
  SendBatch<GenerateRequest>(*stream, header, absl::MakeConstSpan(prompts));
  GeneratedReplies replies(header, prompts);
  std::vector<size_t> taken;
  // An answer that the call does not wait for to its end.
  const auto end_early = [&](const absl::Status& status) {
    context.get()->TryCancel();
    for (GenerateReply rest; stream->Read(&rest);) {
    }
    stream->Finish().ok();
    return status;
  };
  GenerateReply reply;
  while (stream->Read(&reply)) {
    const int sample = reply.sequence().sample();
    const absl::StatusOr<size_t> prompt = replies.Add(std::move(reply));
    if (!prompt.ok()) return end_early(connection_->Answered("Generate", prompt).status());
    const bool complete = replies.IsComplete(*prompt);
    if (complete) taken.push_back(*prompt);
    // Of a prompt that may be given up, nothing is told before all of it is there.
    for (int s = all ? sample : 0; s < (all ? sample + 1 : complete ? replies.samples() : 0); ++s) {
      if (const absl::Status status = on_sequence(replies.sequence(*prompt, s)); !status.ok()) return end_early(status);
    }
    if (!all && taken.size() == wanted) {
      end_early(absl::OkStatus()).IgnoreError();
      break;
    }
  }
  if (all) {
    QUARTET_RETURN_IF_ERROR(connection_->Explain("Generate", FromGrpc(stream->Finish())));
    taken.resize(prompts.size());
    std::iota(taken.begin(), taken.end(), 0);
  } else if (taken.size() < wanted) {
    QUARTET_RETURN_IF_ERROR(connection_->Explain("Generate", FromGrpc(stream->Finish())));
  }
  std::sort(taken.begin(), taken.end());
  if (taken.size() < wanted) {
    return connection_->BadReply("Generate", absl::StrCat(taken.size(), " prompts were answered instead of ", wanted));
  }
  return connection_->Answered("Generate", replies.Take(taken));
}

absl::StatusOr<BeginUpdateReply> RolloutClient::BeginUpdate(uint64_t step, const WeightManifest& manifest) {
  BeginUpdateRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  *request.mutable_manifest() = manifest;
  return Ask(*connection_, "BeginUpdate", &Rollout::Stub::BeginUpdate, request);
}

absl::StatusOr<CommitUpdateReply> RolloutClient::CommitUpdate(uint64_t step, uint64_t version) {
  CommitUpdateRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  request.set_version(version);
  QUARTET_ASSIGN_OR_RETURN(const CommitUpdateReply reply,
                           Ask(*connection_, "CommitUpdate", &Rollout::Stub::CommitUpdate, request));
  if (reply.policy_version() == version) return reply;
  return connection_->BadReply("CommitUpdate",
                               absl::StrCat("version ", reply.policy_version(), " is in use instead of ", version));
}

absl::Status RolloutClient::AbortUpdate(uint64_t step) {
  AbortUpdateRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  return Ask(*connection_, "AbortUpdate", &Rollout::Stub::AbortUpdate, request).status();
}

absl::Status RolloutClient::Sleep(uint64_t step, int level) {
  SleepRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  request.set_level(level);
  return Ask(*connection_, "Sleep", &Rollout::Stub::Sleep, request).status();
}

absl::Status RolloutClient::WakeUp(uint64_t step) {
  WakeUpRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  return Ask(*connection_, "WakeUp", &Rollout::Stub::WakeUp, request).status();
}

absl::Status RolloutClient::Resume(uint64_t step) {
  ResumeRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  return Ask(*connection_, "Resume", &Rollout::Stub::Resume, request).status();
}

// --- policy trainer ---

absl::StatusOr<std::vector<std::vector<float>>> PolicyTrainerClient::LogProbs(float temperature, SequenceSpan sequences,
                                                                              bool without_adapters) {
  LogProbsHeader header;
  header.set_without_adapters(without_adapters);
  header.set_temperature(temperature);
  return ExchangeValues(*connection_, "LogProbs", &PolicyTrainer::Stub::LogProbs, header, sequences,
                        &LogProbsReply::log_probs);
}

absl::StatusOr<PolicyUpdateReply> PolicyTrainerClient::Update(uint64_t step, PolicyUpdateHeader header,
                                                              const std::vector<TrainingSequence>& sequences) {
  *header.mutable_identity() = connection_->NextIdentity(step);
  return SendAll(*connection_, "Update", &PolicyTrainer::Stub::Update, std::move(header), sequences);
}

absl::StatusOr<PublishReply> PolicyTrainerClient::Publish(uint64_t step, uint64_t version) {
  PublishRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  request.set_version(version);
  QUARTET_ASSIGN_OR_RETURN(PublishReply reply, Ask(*connection_, "Publish", &PolicyTrainer::Stub::Publish, request));
  if (reply.manifest().version() == version) return reply;
  return connection_->BadReply(
      "Publish", absl::StrCat("a manifest of version ", reply.manifest().version(), " instead of ", version));
}

absl::StatusOr<SaveCheckpointReply> PolicyTrainerClient::SaveCheckpoint(uint64_t step, const std::string& checkpoint_id,
                                                                        bool save_optimizer) {
  return AskToSave(*connection_, &PolicyTrainer::Stub::SaveCheckpoint, step, checkpoint_id, save_optimizer);
}

absl::Status PolicyTrainerClient::Sleep() {
  return Ask(*connection_, "Sleep", &PolicyTrainer::Stub::Sleep, SleepTrainerRequest()).status();
}

// --- critic trainer ---

absl::StatusOr<std::vector<std::vector<float>>> CriticTrainerClient::Values(SequenceSpan sequences) {
  return ExchangeValues(*connection_, "Values", &CriticTrainer::Stub::Values, ValuesHeader(), sequences,
                        &ValuesReply::values);
}

absl::StatusOr<std::vector<float>> CriticTrainerClient::Rewards(SequenceSpan sequences) {
  ValuesHeader header;
  header.set_last_token(true);
  QUARTET_ASSIGN_OR_RETURN(const auto values,
                           ExchangeValues(*connection_, "Values", &CriticTrainer::Stub::Values, header, sequences,
                                          &ValuesReply::values, ValuesOf::kSequences));
  std::vector<float> rewards;
  for (const std::vector<float>& value : values) rewards.push_back(value.front());
  return rewards;
}

absl::StatusOr<CriticUpdateReply> CriticTrainerClient::Update(uint64_t step, CriticUpdateHeader header,
                                                              const std::vector<TrainingSequence>& sequences) {
  *header.mutable_identity() = connection_->NextIdentity(step);
  return SendAll(*connection_, "Update", &CriticTrainer::Stub::Update, std::move(header), sequences);
}

absl::StatusOr<SaveCheckpointReply> CriticTrainerClient::SaveCheckpoint(uint64_t step, const std::string& checkpoint_id,
                                                                        bool save_optimizer) {
  return AskToSave(*connection_, &CriticTrainer::Stub::SaveCheckpoint, step, checkpoint_id, save_optimizer);
}

absl::Status CriticTrainerClient::Sleep() {
  return Ask(*connection_, "Sleep", &CriticTrainer::Stub::Sleep, SleepTrainerRequest()).status();
}

// --- scorer ---

namespace {

class ScoreCallImpl final : public ScoreCall {
 public:
  ScoreCallImpl(const ServiceClient::Connection& connection, int64_t num_items)
      : connection_(connection),
        context_(connection, "Score", 2 * connection.timeout),
        stub_(connection.channel),
        stream_(stub_.Score(context_.get())) {
    ScoreRequest request;
    request.mutable_header()->set_num_items(static_cast<uint64_t>(num_items));
    stream_->Write(request);
    // Replies are read as they come: a service whose replies nobody reads would in the end not read items either.
    reader_ = std::thread([this] {
      ScoreReply reply;
      while (stream_->Read(&reply)) replies_.push_back(std::move(reply));
    });
  }
  ~ScoreCallImpl() override {
    if (!reader_.joinable()) return;
    context_.get()->TryCancel();
    reader_.join();
    stream_->Finish().ok();
  }

  void Add(const ScoreItem& item) override {
    indices_.push_back(item.tokens().index());
    ScoreRequest request;
    *request.mutable_item() = item;
    stream_->Write(request);
  }

  absl::StatusOr<std::vector<ScoreReply>> Finish() override {
    stream_->WritesDone();
    reader_.join();
    QUARTET_RETURN_IF_ERROR(connection_.Explain("Score", FromGrpc(stream_->Finish())));
    return connection_.Answered("Score", OrderScores(indices_, std::move(replies_)));
  }

 private:
  const ServiceClient::Connection& connection_;
  CallContext context_;
  Scorer::Stub stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<ScoreRequest, ScoreReply>> stream_;
  std::vector<uint64_t> indices_;
  std::vector<ScoreReply> replies_;  // the reader's until it has ended
  std::thread reader_;
};

}  // namespace

std::unique_ptr<ScoreCall> ScorerClient::BeginScore(int64_t num_items) {
  return std::make_unique<ScoreCallImpl>(*connection_, num_items);
}

absl::StatusOr<std::vector<ScoreReply>> ScorerClient::Score(const std::vector<ScoreItem>& items) {
  const std::unique_ptr<ScoreCall> call = BeginScore(static_cast<int64_t>(items.size()));
  for (const ScoreItem& item : items) call->Add(item);
  return call->Finish();
}

absl::StatusOr<std::vector<std::vector<float>>> ScorerClient::ReferenceLogProbs(float temperature,
                                                                                SequenceSpan sequences) {
  ReferenceLogProbsHeader header;
  header.set_temperature(temperature);
  return ExchangeValues(*connection_, "ReferenceLogProbs", &Scorer::Stub::ReferenceLogProbs, header, sequences,
                        &ReferenceLogProbsReply::log_probs);
}

// --- connecting ---

namespace {

std::shared_ptr<Incarnation> NewIncarnation() {
  return std::make_shared<Incarnation>(static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())));
}

template <typename Service, typename Client>
absl::Status Connect(const RunConfig& config, const char* service, std::shared_ptr<Incarnation> incarnation,
                     Cancellation* cancellation, std::unique_ptr<Client>* client) {
  QUARTET_CHECK(cancellation != nullptr);
  const std::string& address = PlacementOf(config, service).listen();
  QUARTET_RETURN_IF_ERROR(Prefixed(absl::StrCat("services.", service, ".listen"), ParseHostPort(address).status()));
  QUARTET_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials, MakeChannelCredentials(config.tls()));
  auto connection = std::make_shared<ServiceClient::Connection>();
  connection->service = service;
  connection->address = address;
  connection->timeout = absl::Seconds(config.train().call_timeout_seconds());
  connection->run_dir = config.run_dir();
  connection->incarnation = std::move(incarnation);
  connection->cancellation = cancellation;
  connection->credentials = credentials;
  connection->channel = MakeChannel(address, credentials);
  connection->health_watch.emplace(connection->channel);
  connection->own_user_only = config.tls().ca_file().empty() && !config.services().allow_other_users();
  connection->get_info = [](const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext* context,
                            const GetInfoRequest& request,
                            ServiceInfo* info) { return Service::NewStub(channel)->GetInfo(context, request, info); };
  *client = std::make_unique<Client>(std::move(connection));
  return absl::OkStatus();
}

}  // namespace

std::vector<ServiceClient*> Services::all() const {
  std::vector<ServiceClient*> clients = {rollout.get(), policy_trainer.get()};
  if (critic_trainer != nullptr) clients.push_back(critic_trainer.get());
  clients.push_back(scorer.get());
  return clients;
}

absl::StatusOr<Services> ConnectServices(const RunConfig& config, Cancellation* cancellation) {
  const std::shared_ptr<Incarnation> incarnation = NewIncarnation();
  Services clients;
  QUARTET_RETURN_IF_ERROR(Connect<Rollout>(config, "rollout", incarnation, cancellation, &clients.rollout));
  QUARTET_RETURN_IF_ERROR(
      Connect<PolicyTrainer>(config, "policy_trainer", incarnation, cancellation, &clients.policy_trainer));
  if (UsesCritic(config)) {
    QUARTET_RETURN_IF_ERROR(
        Connect<CriticTrainer>(config, "critic_trainer", incarnation, cancellation, &clients.critic_trainer));
  }
  QUARTET_RETURN_IF_ERROR(Connect<Scorer>(config, "scorer", incarnation, cancellation, &clients.scorer));
  return clients;
}

absl::StatusOr<std::unique_ptr<ServiceClient>> ConnectService(const RunConfig& config, const std::string& service,
                                                              Cancellation* cancellation) {
  if (service == "policy_trainer") return ConnectPolicyTrainer(config, cancellation);
  if (service == "critic_trainer") return ConnectCriticTrainer(config, cancellation);
  if (service == "scorer") return ConnectScorer(config, cancellation);
  if (service != "rollout") return absl::InvalidArgumentError(absl::StrCat("there is no service '", service, "'"));
  std::unique_ptr<RolloutClient> client;
  QUARTET_RETURN_IF_ERROR(Connect<Rollout>(config, "rollout", NewIncarnation(), cancellation, &client));
  return client;
}

absl::StatusOr<std::unique_ptr<PolicyTrainerClient>> ConnectPolicyTrainer(const RunConfig& config,
                                                                          Cancellation* cancellation) {
  std::unique_ptr<PolicyTrainerClient> client;
  QUARTET_RETURN_IF_ERROR(Connect<PolicyTrainer>(config, "policy_trainer", NewIncarnation(), cancellation, &client));
  return client;
}

absl::StatusOr<std::unique_ptr<CriticTrainerClient>> ConnectCriticTrainer(const RunConfig& config,
                                                                          Cancellation* cancellation) {
  std::unique_ptr<CriticTrainerClient> client;
  QUARTET_RETURN_IF_ERROR(Connect<CriticTrainer>(config, "critic_trainer", NewIncarnation(), cancellation, &client));
  return client;
}

absl::StatusOr<std::unique_ptr<ScorerClient>> ConnectScorer(const RunConfig& config, Cancellation* cancellation) {
  std::unique_ptr<ScorerClient> client;
  QUARTET_RETURN_IF_ERROR(Connect<Scorer>(config, "scorer", NewIncarnation(), cancellation, &client));
  return client;
}

}  // namespace quartet

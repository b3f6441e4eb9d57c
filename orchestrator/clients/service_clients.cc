#include "orchestrator/clients/service_clients.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/deadline.h"
#include "core/base/loading.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/config/run_config.h"
#include "core/service/wire/credentials.h"
#include "orchestrator/clients/connection.h"
#include "orchestrator/clients/replies.h"
#include "proto/critic_trainer.grpc.pb.h"
#include "proto/policy_trainer.grpc.pb.h"
#include "proto/rollout.grpc.pb.h"
#include "proto/scorer.grpc.pb.h"

namespace quartet {
namespace {

// How long GetInfo, the first call to a service, goes on trying to connect.
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);

// How often a service that loads its model is asked again.
constexpr absl::Duration kLoadingPoll = absl::Milliseconds(200);

// How long the call that ends a pause may take, which the end of the run does not cancel.
constexpr absl::Duration kResumeTimeout = absl::Seconds(10);

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

bool ServiceClient::WaitForConnection() {
  const Deadline deadline = Deadline::In(kConnectTimeout);
  while (!connection_->channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Milliseconds(100)))) {
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
  CallContext context(*connection_);
  ServiceInfo info;
  QUARTET_RETURN_IF_ERROR(FromGrpc(connection_->get_info(context.get(), GetInfoRequest(), &info)));
  return info;
}

// --- rollout ---

absl::StatusOr<std::vector<GeneratedSequence>> RolloutClient::Generate(const GenerateHeader& header,
                                                                       const std::vector<Prompt>& prompts,
                                                                       const ProgressFunction& progress) {
  QUARTET_ASSIGN_OR_RETURN(std::vector<GenerateReply> replies,
                           Exchange(*connection_, "Generate", &Rollout::Stub::Generate, header, prompts, progress));
  return connection_->Answered("Generate", OrderGenerated(header, prompts, std::move(replies)));
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

absl::StatusOr<PauseReply> RolloutClient::Pause(uint64_t step, PauseRequest::Mode mode) {
  PauseRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  request.set_mode(mode);
  return Ask(*connection_, "Pause", &Rollout::Stub::Pause, request);
}

absl::Status RolloutClient::Resume(uint64_t step) {
  ResumeRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  grpc::ClientContext context;
  CallContext::SetTimeout(&context, std::min(connection_->timeout, kResumeTimeout));
  ResumeReply reply;
  return connection_->Explain("Resume",
                              FromGrpc(Rollout::NewStub(connection_->channel)->Resume(&context, request, &reply)));
}

// --- policy trainer ---

absl::StatusOr<std::vector<std::vector<float>>> PolicyTrainerClient::LogProbs(
    float temperature, const std::vector<TokenSequence>& sequences) {
  LogProbsHeader header;
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

// --- critic trainer ---

absl::StatusOr<std::vector<std::vector<float>>> CriticTrainerClient::Values(
    const std::vector<TokenSequence>& sequences) {
  return ExchangeValues(*connection_, "Values", &CriticTrainer::Stub::Values, ValuesHeader(), sequences,
                        &ValuesReply::values);
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

// --- scorer ---

absl::StatusOr<std::vector<ScoreReply>> ScorerClient::Score(const std::vector<ScoreItem>& items) {
  QUARTET_ASSIGN_OR_RETURN(std::vector<ScoreReply> replies,
                           Exchange(*connection_, "Score", &Scorer::Stub::Score, ScoreHeader(), items));
  return connection_->Answered("Score", OrderScores(items, std::move(replies)));
}

absl::StatusOr<std::vector<std::vector<float>>> ScorerClient::ReferenceLogProbs(
    float temperature, const std::vector<TokenSequence>& sequences) {
  ReferenceLogProbsHeader header;
  header.set_temperature(temperature);
  return ExchangeValues(*connection_, "ReferenceLogProbs", &Scorer::Stub::ReferenceLogProbs, header, sequences,
                        &ReferenceLogProbsReply::log_probs);
}

// --- connecting ---

namespace {

// Time orders orchestrators that follow each other.
uint64_t NewEpoch() { return static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())); }

template <typename Service, typename Client>
absl::Status Connect(const RunConfig& config, const char* service, uint64_t epoch, Cancellation* cancellation,
                     std::unique_ptr<Client>* client) {
  QUARTET_CHECK(cancellation != nullptr);
  const std::string& address = PlacementOf(config, service).listen();
  QUARTET_RETURN_IF_ERROR(Prefixed(absl::StrCat("services.", service, ".listen"), ParseHostPort(address).status()));
  QUARTET_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials, MakeChannelCredentials(config.tls()));
  auto connection = std::make_shared<ServiceClient::Connection>();
  connection->service = service;
  connection->address = address;
  connection->timeout = absl::Seconds(config.train().call_timeout_seconds());
  connection->run_id = absl::StrCat(config.run_dir(), "@", epoch);
  connection->epoch = epoch;
  connection->cancellation = cancellation;
  connection->channel = MakeChannel(address, credentials);
  connection->get_info = [channel = connection->channel](grpc::ClientContext* context, const GetInfoRequest& request,
                                                         ServiceInfo* info) {
    return Service::NewStub(channel)->GetInfo(context, request, info);
  };
  *client = std::make_unique<Client>(std::move(connection));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Services> ConnectServices(const RunConfig& config, Cancellation* cancellation) {
  const uint64_t epoch = NewEpoch();
  Services clients;
  QUARTET_RETURN_IF_ERROR(Connect<Rollout>(config, "rollout", epoch, cancellation, &clients.rollout));
  QUARTET_RETURN_IF_ERROR(
      Connect<PolicyTrainer>(config, "policy_trainer", epoch, cancellation, &clients.policy_trainer));
  QUARTET_RETURN_IF_ERROR(
      Connect<CriticTrainer>(config, "critic_trainer", epoch, cancellation, &clients.critic_trainer));
  QUARTET_RETURN_IF_ERROR(Connect<Scorer>(config, "scorer", epoch, cancellation, &clients.scorer));
  return clients;
}

absl::StatusOr<std::unique_ptr<PolicyTrainerClient>> ConnectPolicyTrainer(const RunConfig& config,
                                                                          Cancellation* cancellation) {
  std::unique_ptr<PolicyTrainerClient> client;
  QUARTET_RETURN_IF_ERROR(Connect<PolicyTrainer>(config, "policy_trainer", NewEpoch(), cancellation, &client));
  return client;
}

}  // namespace quartet

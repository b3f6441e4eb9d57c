#include "orchestrator/service_clients.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/service/credentials.h"
#include "core/service/protocol_version.h"
#include "core/service/status_conversion.h"
#include "proto/critic_trainer.grpc.pb.h"
#include "proto/policy_trainer.grpc.pb.h"
#include "proto/rollout.grpc.pb.h"
#include "proto/scorer.grpc.pb.h"

namespace quartet {

struct ServiceClient::Connection {
  std::string service;
  ClientOptions options;
  std::shared_ptr<grpc::Channel> channel;
  // GetInfo is the same call in each service, on its own stub.
  std::function<grpc::Status(grpc::ClientContext*, const GetInfoRequest&, ServiceInfo*)> get_info;

  std::mutex mutex;
  uint64_t last_sequence = 0;

  CallIdentity NextIdentity(uint64_t step) {
    CallIdentity identity;
    identity.set_run_id(options.run_id);
    identity.set_step(step);
    identity.set_epoch(options.epoch);
    std::lock_guard<std::mutex> lock(mutex);
    identity.set_sequence(++last_sequence);
    return identity;
  }

  std::string Place(const std::string& call) const {
    return absl::StrCat(service, " at ", options.address, ", ", call);
  }

  // What is told of a call that did not succeed.
  absl::Status Explain(const std::string& call, const absl::Status& status) const {
    if (status.ok()) return status;
    if (absl::Status reason = options.cancellation->status(); !reason.ok()) return reason;
    std::string message = absl::StrCat(Place(call), ": ", status.message());
    if (status.code() == absl::StatusCode::kUnavailable) {
      absl::StrAppend(&message, ". Does it run? Start it with `bazel run //", service,
                      " -- --config=FILE`, or all services with the orchestrator's --launch");
    } else if (status.code() == absl::StatusCode::kCancelled) {
      absl::StrAppend(&message, " (the service has cut off the call)");
    } else if (status.code() == absl::StatusCode::kDeadlineExceeded) {
      absl::StrAppend(&message, " (train.call_timeout_seconds is ", absl::ToInt64Seconds(options.timeout), ")");
    }
    return absl::Status(status.code(), message);
  }

  absl::Status BadReply(const std::string& call, const std::string& what) const {
    return absl::InternalError(absl::StrCat(Place(call), ": ", what));
  }
};

namespace {

// How long GetInfo, the first call to a service, goes on trying to connect.
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);

// How long the call that ends a pause may take, which the end of the run does not cancel.
constexpr absl::Duration kResumeTimeout = absl::Seconds(10);

void SetTimeout(grpc::ClientContext* context, absl::Duration timeout) {
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
}

// The context of one call: deadline, and the end of the call when the run is cancelled.
class CallContext {
 public:
  explicit CallContext(const ClientOptions& options) : scope_(options.cancellation, [this] { context_.TryCancel(); }) {
    SetTimeout(&context_, options.timeout);
  }
  grpc::ClientContext* get() { return &context_; }

 private:
  grpc::ClientContext context_;
  Cancellation::Scope scope_;  // after context_: ends first
};

// Sends header and items. False where the other side has ended the call; its status says why.
template <typename Request, typename Header, typename Item, typename Stream>
bool SendBatch(Stream& stream, Header header, const std::vector<Item>& items) {
  header.set_num_items(items.size());
  Request request;
  *request.mutable_header() = std::move(header);
  if (!stream.Write(request)) return false;
  for (const Item& item : items) {
    *request.mutable_item() = item;
    if (!stream.Write(request)) return false;
  }
  return stream.WritesDone();
}

// A batch one way, replies the other. Servers read the whole batch before they answer.
template <typename Request, typename Reply, typename Header, typename Item, typename Stream>
absl::StatusOr<std::vector<Reply>> Exchange(Stream& stream, Header header, const std::vector<Item>& items,
                                            const ProgressFunction& progress = nullptr) {
  SendBatch<Request>(stream, std::move(header), items);
  std::vector<Reply> replies;
  Reply reply;
  while (stream.Read(&reply)) {
    replies.push_back(std::move(reply));
    if (progress) progress(static_cast<int64_t>(replies.size()));
  }
  QUARTET_RETURN_IF_ERROR(FromGrpc(stream.Finish()));
  return replies;
}

int64_t ActionTokens(const TokenSequence& sequence) {
  return std::count(sequence.action_mask().begin(), sequence.action_mask().end(), true);
}

bool AllFinite(const google::protobuf::RepeatedField<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// Puts replies in the order of the sequences. An empty string, or what is wrong with them.
std::string OrderTokenValues(const std::vector<TokenSequence>& sequences,
                             const std::vector<const TokenValues*>& replies, std::vector<std::vector<float>>* ordered) {
  std::unordered_map<uint64_t, size_t> positions;
  for (size_t i = 0; i < sequences.size(); ++i) positions[sequences[i].index()] = i;
  QUARTET_CHECK(positions.size() == sequences.size()) << "indices of sequences are not unique";
  if (replies.size() != sequences.size()) {
    return absl::StrCat(replies.size(), " replies for ", sequences.size(), " sequences");
  }
  ordered->assign(sequences.size(), {});
  std::vector<bool> seen(sequences.size());
  for (const TokenValues* reply : replies) {
    const auto position = positions.find(reply->index());
    if (position == positions.end() || seen[position->second]) {
      return absl::StrCat("sequence ", reply->index(), " was answered twice or not asked for");
    }
    seen[position->second] = true;
    const int64_t expected = ActionTokens(sequences[position->second]);
    if (reply->values_size() != expected) {
      return absl::StrCat("sequence ", reply->index(), " has ", expected, " action tokens but ", reply->values_size(),
                          " values came");
    }
    if (!AllFinite(reply->values())) {
      return absl::StrCat("sequence ", reply->index(), " has a value that is not finite");
    }
    (*ordered)[position->second].assign(reply->values().begin(), reply->values().end());
  }
  return "";
}

// What is wrong with a generated sequence, or "".
std::string CheckGenerated(const GeneratedSequence& sequence, const Prompt& prompt, const GenerateHeader& header) {
  const TokenSequence& tokens = sequence.tokens();
  const int prompt_length = prompt.ids_size();
  const int length = tokens.ids_size();
  if (length <= prompt_length || length > prompt_length + header.sampling().max_new_tokens()) {
    return absl::StrCat(length, " tokens after a prompt of ", prompt_length, " with max_new_tokens ",
                        header.sampling().max_new_tokens());
  }
  if (!std::equal(prompt.ids().begin(), prompt.ids().end(), tokens.ids().begin())) return "it lost its prompt";
  if (tokens.action_mask_size() != length) return absl::StrCat("an action mask of ", tokens.action_mask_size());
  for (int i = 0; i < length; ++i) {
    if (tokens.action_mask(i) != (i >= prompt_length)) return "an action mask that is not the answer";
  }
  const int actions = length - prompt_length;
  if (sequence.log_probs_size() != actions || sequence.policy_versions_size() != actions) {
    return absl::StrCat(sequence.log_probs_size(), " log-probabilities and ", sequence.policy_versions_size(),
                        " versions for ", actions, " tokens");
  }
  if (!AllFinite(sequence.log_probs())) return "a log-probability that is not finite";
  for (uint64_t version : sequence.policy_versions()) {
    if (version != header.policy_version()) {
      return absl::StrCat("a token of policy version ", version, " instead of ", header.policy_version());
    }
  }
  if (sequence.finish_reason() != GeneratedSequence::STOP && sequence.finish_reason() != GeneratedSequence::LENGTH) {
    return absl::StrCat("the finish reason ", GeneratedSequence::FinishReason_Name(sequence.finish_reason()));
  }
  return "";
}

}  // namespace

ServiceClient::~ServiceClient() = default;
const std::string& ServiceClient::service() const { return connection_->service; }
const std::string& ServiceClient::address() const { return connection_->options.address; }

absl::StatusOr<ServiceInfo> ServiceClient::GetInfo() {
  // A first connection may fail by itself on a busy machine, or come a moment before the service listens. Where none
  // comes about, the call below says why.
  const absl::Time deadline = absl::Now() + kConnectTimeout;
  while (!connection_->channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Milliseconds(100)))) {
    if (absl::Now() > deadline || !connection_->options.cancellation->status().ok()) break;
  }
  CallContext context(connection_->options);
  ServiceInfo info;
  QUARTET_RETURN_IF_ERROR(
      connection_->Explain("GetInfo", FromGrpc(connection_->get_info(context.get(), GetInfoRequest(), &info))));
  return info;
}

// --- rollout ---

absl::StatusOr<std::vector<GeneratedSequence>> RolloutClient::Generate(const GenerateHeader& header,
                                                                       const std::vector<Prompt>& prompts,
                                                                       const ProgressFunction& progress) {
  const int samples = std::max(header.sampling().n_samples(), 1);
  CallContext context(connection_->options);
  auto stub = Rollout::NewStub(connection_->channel);
  auto stream = stub->Generate(context.get());
  absl::StatusOr<std::vector<GenerateReply>> replies =
      Exchange<GenerateRequest, GenerateReply>(*stream, header, prompts, progress);
  if (!replies.ok()) return connection_->Explain("Generate", replies.status());

  std::unordered_map<uint64_t, size_t> positions;
  for (size_t i = 0; i < prompts.size(); ++i) positions[prompts[i].index()] = i;
  QUARTET_CHECK(positions.size() == prompts.size()) << "indices of prompts are not unique";
  if (replies->size() != prompts.size() * samples) {
    return connection_->BadReply("Generate", absl::StrCat(replies->size(), " sequences instead of ", prompts.size(),
                                                          " prompts times ", samples, " samples"));
  }
  std::vector<GeneratedSequence> ordered(replies->size());
  std::vector<bool> seen(replies->size());
  for (GenerateReply& message : *replies) {
    GeneratedSequence& reply = *message.mutable_sequence();
    const auto position = positions.find(reply.prompt_index());
    const std::string name = absl::StrCat("prompt ", reply.prompt_index(), ", sample ", reply.sample());
    if (position == positions.end() || reply.sample() < 0 || reply.sample() >= samples) {
      return connection_->BadReply("Generate", name + " was not asked for");
    }
    const size_t slot = position->second * samples + reply.sample();
    if (seen[slot]) return connection_->BadReply("Generate", name + " came twice");
    seen[slot] = true;
    if (const std::string wrong = CheckGenerated(reply, prompts[position->second], header); !wrong.empty()) {
      return connection_->BadReply("Generate", absl::StrCat(name, " has ", wrong));
    }
    ordered[slot] = std::move(reply);
  }
  return ordered;
}

absl::StatusOr<BeginUpdateReply> RolloutClient::BeginUpdate(uint64_t step, const WeightManifest& manifest) {
  BeginUpdateRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  *request.mutable_manifest() = manifest;
  CallContext context(connection_->options);
  BeginUpdateReply reply;
  QUARTET_RETURN_IF_ERROR(connection_->Explain(
      "BeginUpdate", FromGrpc(Rollout::NewStub(connection_->channel)->BeginUpdate(context.get(), request, &reply))));
  return reply;
}

absl::StatusOr<CommitUpdateReply> RolloutClient::CommitUpdate(uint64_t step, uint64_t version) {
  CommitUpdateRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  request.set_version(version);
  CallContext context(connection_->options);
  CommitUpdateReply reply;
  QUARTET_RETURN_IF_ERROR(connection_->Explain(
      "CommitUpdate", FromGrpc(Rollout::NewStub(connection_->channel)->CommitUpdate(context.get(), request, &reply))));
  if (reply.policy_version() != version) {
    return connection_->BadReply("CommitUpdate",
                                 absl::StrCat("version ", reply.policy_version(), " is in use instead of ", version));
  }
  return reply;
}

absl::Status RolloutClient::AbortUpdate(uint64_t step) {
  AbortUpdateRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  CallContext context(connection_->options);
  AbortUpdateReply reply;
  return connection_->Explain(
      "AbortUpdate", FromGrpc(Rollout::NewStub(connection_->channel)->AbortUpdate(context.get(), request, &reply)));
}

absl::StatusOr<PauseReply> RolloutClient::Pause(uint64_t step, PauseRequest::Mode mode) {
  PauseRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  request.set_mode(mode);
  CallContext context(connection_->options);
  PauseReply reply;
  QUARTET_RETURN_IF_ERROR(connection_->Explain(
      "Pause", FromGrpc(Rollout::NewStub(connection_->channel)->Pause(context.get(), request, &reply))));
  return reply;
}

absl::Status RolloutClient::Resume(uint64_t step) {
  ResumeRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  grpc::ClientContext context;
  SetTimeout(&context, std::min(connection_->options.timeout, kResumeTimeout));
  ResumeReply reply;
  return connection_->Explain("Resume",
                              FromGrpc(Rollout::NewStub(connection_->channel)->Resume(&context, request, &reply)));
}

// --- trainers ---

namespace {

template <typename Stub>
absl::StatusOr<SaveCheckpointReply> SaveCheckpointBy(Stub& stub, ServiceClient::Connection& connection, uint64_t step,
                                                     const std::string& checkpoint_id, bool save_optimizer) {
  SaveCheckpointRequest request;
  *request.mutable_identity() = connection.NextIdentity(step);
  request.set_checkpoint_id(checkpoint_id);
  request.set_save_optimizer(save_optimizer);
  CallContext context(connection.options);
  SaveCheckpointReply reply;
  QUARTET_RETURN_IF_ERROR(
      connection.Explain("SaveCheckpoint", FromGrpc(stub.SaveCheckpoint(context.get(), request, &reply))));
  return reply;
}

}  // namespace

// --- policy trainer ---

absl::StatusOr<std::vector<std::vector<float>>> PolicyTrainerClient::LogProbs(
    float temperature, const std::vector<TokenSequence>& sequences) {
  LogProbsHeader header;
  header.set_temperature(temperature);
  CallContext context(connection_->options);
  auto stub = PolicyTrainer::NewStub(connection_->channel);
  auto stream = stub->LogProbs(context.get());
  auto replies = Exchange<LogProbsRequest, LogProbsReply>(*stream, header, sequences);
  if (!replies.ok()) return connection_->Explain("LogProbs", replies.status());
  std::vector<const TokenValues*> values;
  for (const LogProbsReply& reply : *replies) values.push_back(&reply.log_probs());
  std::vector<std::vector<float>> ordered;
  if (const std::string wrong = OrderTokenValues(sequences, values, &ordered); !wrong.empty()) {
    return connection_->BadReply("LogProbs", wrong);
  }
  return ordered;
}

absl::StatusOr<PolicyUpdateReply> PolicyTrainerClient::Update(uint64_t step, PolicyUpdateHeader header,
                                                              const std::vector<TrainingSequence>& sequences) {
  *header.mutable_identity() = connection_->NextIdentity(step);
  CallContext context(connection_->options);
  auto stub = PolicyTrainer::NewStub(connection_->channel);
  PolicyUpdateReply reply;
  auto stream = stub->Update(context.get(), &reply);
  SendBatch<PolicyUpdateRequest>(*stream, std::move(header), sequences);
  QUARTET_RETURN_IF_ERROR(connection_->Explain("Update", FromGrpc(stream->Finish())));
  return reply;
}

absl::StatusOr<PublishReply> PolicyTrainerClient::Publish(uint64_t step, uint64_t version) {
  PublishRequest request;
  *request.mutable_identity() = connection_->NextIdentity(step);
  request.set_version(version);
  CallContext context(connection_->options);
  PublishReply reply;
  QUARTET_RETURN_IF_ERROR(connection_->Explain(
      "Publish", FromGrpc(PolicyTrainer::NewStub(connection_->channel)->Publish(context.get(), request, &reply))));
  if (reply.manifest().version() != version) {
    return connection_->BadReply(
        "Publish", absl::StrCat("a manifest of version ", reply.manifest().version(), " instead of ", version));
  }
  return reply;
}

absl::StatusOr<SaveCheckpointReply> PolicyTrainerClient::SaveCheckpoint(uint64_t step, const std::string& checkpoint_id,
                                                                        bool save_optimizer) {
  return SaveCheckpointBy(*PolicyTrainer::NewStub(connection_->channel), *connection_, step, checkpoint_id,
                          save_optimizer);
}

// --- critic trainer ---

absl::StatusOr<std::vector<std::vector<float>>> CriticTrainerClient::Values(
    const std::vector<TokenSequence>& sequences) {
  CallContext context(connection_->options);
  auto stub = CriticTrainer::NewStub(connection_->channel);
  auto stream = stub->Values(context.get());
  auto replies = Exchange<ValuesRequest, ValuesReply>(*stream, ValuesHeader(), sequences);
  if (!replies.ok()) return connection_->Explain("Values", replies.status());
  std::vector<const TokenValues*> values;
  for (const ValuesReply& reply : *replies) values.push_back(&reply.values());
  std::vector<std::vector<float>> ordered;
  if (const std::string wrong = OrderTokenValues(sequences, values, &ordered); !wrong.empty()) {
    return connection_->BadReply("Values", wrong);
  }
  return ordered;
}

absl::StatusOr<CriticUpdateReply> CriticTrainerClient::Update(uint64_t step, CriticUpdateHeader header,
                                                              const std::vector<TrainingSequence>& sequences) {
  *header.mutable_identity() = connection_->NextIdentity(step);
  CallContext context(connection_->options);
  auto stub = CriticTrainer::NewStub(connection_->channel);
  CriticUpdateReply reply;
  auto stream = stub->Update(context.get(), &reply);
  SendBatch<CriticUpdateRequest>(*stream, std::move(header), sequences);
  QUARTET_RETURN_IF_ERROR(connection_->Explain("Update", FromGrpc(stream->Finish())));
  return reply;
}

absl::StatusOr<SaveCheckpointReply> CriticTrainerClient::SaveCheckpoint(uint64_t step, const std::string& checkpoint_id,
                                                                        bool save_optimizer) {
  return SaveCheckpointBy(*CriticTrainer::NewStub(connection_->channel), *connection_, step, checkpoint_id,
                          save_optimizer);
}

// --- scorer ---

absl::StatusOr<std::vector<ScoreReply>> ScorerClient::Score(const std::vector<ScoreItem>& items) {
  CallContext context(connection_->options);
  auto stub = Scorer::NewStub(connection_->channel);
  auto stream = stub->Score(context.get());
  auto replies = Exchange<ScoreRequest, ScoreReply>(*stream, ScoreHeader(), items);
  if (!replies.ok()) return connection_->Explain("Score", replies.status());
  if (replies->size() != items.size()) {
    return connection_->BadReply("Score", absl::StrCat(replies->size(), " rewards for ", items.size(), " sequences"));
  }
  std::unordered_map<uint64_t, size_t> positions;
  for (size_t i = 0; i < items.size(); ++i) positions[items[i].tokens().index()] = i;
  QUARTET_CHECK(positions.size() == items.size()) << "indices of sequences are not unique";
  std::vector<ScoreReply> ordered(items.size());
  std::vector<bool> seen(items.size());
  for (ScoreReply& reply : *replies) {
    const auto position = positions.find(reply.index());
    if (position == positions.end() || seen[position->second]) {
      return connection_->BadReply("Score",
                                   absl::StrCat("sequence ", reply.index(), " was scored twice or not asked for"));
    }
    seen[position->second] = true;
    if (!std::isfinite(reply.reward())) {
      return connection_->BadReply("Score", absl::StrCat("the reward of sequence ", reply.index(), " is not finite"));
    }
    ordered[position->second] = std::move(reply);
  }
  return ordered;
}

absl::StatusOr<std::vector<std::vector<float>>> ScorerClient::ReferenceLogProbs(
    float temperature, const std::vector<TokenSequence>& sequences) {
  ReferenceLogProbsHeader header;
  header.set_temperature(temperature);
  CallContext context(connection_->options);
  auto stub = Scorer::NewStub(connection_->channel);
  auto stream = stub->ReferenceLogProbs(context.get());
  auto replies = Exchange<ReferenceLogProbsRequest, ReferenceLogProbsReply>(*stream, header, sequences);
  if (!replies.ok()) return connection_->Explain("ReferenceLogProbs", replies.status());
  std::vector<const TokenValues*> values;
  for (const ReferenceLogProbsReply& reply : *replies) values.push_back(&reply.log_probs());
  std::vector<std::vector<float>> ordered;
  if (const std::string wrong = OrderTokenValues(sequences, values, &ordered); !wrong.empty()) {
    return connection_->BadReply("ReferenceLogProbs", wrong);
  }
  return ordered;
}

// --- making clients ---

struct ClientFactory {
  template <typename Service, typename Client>
  static absl::StatusOr<std::unique_ptr<Client>> Make(const char* name, const ClientOptions& options) {
    QUARTET_CHECK(options.cancellation != nullptr);
    absl::StatusOr<HostPort> address = ParseHostPort(options.address);
    if (!address.ok()) {
      return absl::Status(address.status().code(),
                          absl::StrCat("services.", name, ".listen: ", address.status().message()));
    }
    QUARTET_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials,
                             MakeChannelCredentials(options.tls));
    auto connection = std::make_shared<ServiceClient::Connection>();
    connection->service = name;
    connection->options = options;
    connection->channel = MakeChannel(options.address, credentials);
    connection->get_info = [channel = connection->channel](grpc::ClientContext* context, const GetInfoRequest& request,
                                                           ServiceInfo* info) {
      return Service::NewStub(channel)->GetInfo(context, request, info);
    };
    return std::make_unique<Client>(std::move(connection));
  }
};

absl::StatusOr<std::unique_ptr<RolloutClient>> MakeRolloutClient(const ClientOptions& options) {
  return ClientFactory::Make<Rollout, RolloutClient>("rollout", options);
}
absl::StatusOr<std::unique_ptr<PolicyTrainerClient>> MakePolicyTrainerClient(const ClientOptions& options) {
  return ClientFactory::Make<PolicyTrainer, PolicyTrainerClient>("policy_trainer", options);
}
absl::StatusOr<std::unique_ptr<CriticTrainerClient>> MakeCriticTrainerClient(const ClientOptions& options) {
  return ClientFactory::Make<CriticTrainer, CriticTrainerClient>("critic_trainer", options);
}
absl::StatusOr<std::unique_ptr<ScorerClient>> MakeScorerClient(const ClientOptions& options) {
  return ClientFactory::Make<Scorer, ScorerClient>("scorer", options);
}

ClientOptions MakeClientOptions(const RunConfig& config, const std::string& address, Cancellation* cancellation) {
  const absl::Time now = absl::Now();
  ClientOptions options;
  options.address = address;
  options.tls = config.tls();
  options.timeout = absl::Seconds(config.train().call_timeout_seconds());
  options.run_id = absl::StrFormat("%s@%d", config.run_dir(), absl::ToUnixMicros(now));
  // Time orders orchestrators that follow each other.
  options.epoch = static_cast<uint64_t>(absl::ToUnixMicros(now));
  options.cancellation = cancellation;
  return options;
}

absl::StatusOr<Services> ConnectServices(const RunConfig& config, Cancellation* cancellation) {
  ClientOptions options = MakeClientOptions(config, "", cancellation);
  Services services;
  options.address = config.services().rollout().listen();
  QUARTET_ASSIGN_OR_RETURN(services.rollout, MakeRolloutClient(options));
  options.address = config.services().policy_trainer().listen();
  QUARTET_ASSIGN_OR_RETURN(services.policy_trainer, MakePolicyTrainerClient(options));
  options.address = config.services().critic_trainer().listen();
  QUARTET_ASSIGN_OR_RETURN(services.critic_trainer, MakeCriticTrainerClient(options));
  options.address = config.services().scorer().listen();
  QUARTET_ASSIGN_OR_RETURN(services.scorer, MakeScorerClient(options));
  return services;
}

// --- hello ---

absl::StatusOr<ServiceInfo> CheckService(ServiceClient& client, int32_t tokenizer_vocab_size,
                                         int64_t longest_sequence) {
  QUARTET_ASSIGN_OR_RETURN(ServiceInfo info, client.GetInfo());
  const std::string place = absl::StrCat(client.service(), " at ", client.address());
  if (info.service() != client.service()) {
    return absl::FailedPreconditionError(absl::StrCat("at ", client.address(), " is the service \"", info.service(),
                                                      "\", not \"", client.service(), "\""));
  }
  if (info.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(place, " speaks protocol version ", info.protocol_version(),
                                                      "; this orchestrator speaks ", kProtocolVersion,
                                                      ". Build both from the same sources"));
  }
  for (const auto& [role, size] : info.vocab_size()) {
    if (tokenizer_vocab_size > size) {
      return absl::FailedPreconditionError(absl::StrCat(place, ": its ", role, " has a vocabulary of ", size,
                                                        " tokens but the tokenizer has ", tokenizer_vocab_size,
                                                        ". Give each model the tokenizer that it was trained with"));
    }
  }
  if (info.max_model_len() > 0 && longest_sequence > info.max_model_len()) {
    return absl::FailedPreconditionError(absl::StrCat(place, " takes sequences of at most ", info.max_model_len(),
                                                      " tokens, but prompt and answer "
                                                      "together can have ",
                                                      longest_sequence));
  }
  return info;
}

absl::StatusOr<Hello> SayHello(Services& services, const RunConfig& config, int32_t tokenizer_vocab_size) {
  const int64_t longest = static_cast<int64_t>(config.data().prompt_max_len()) + config.rollout().generate_max_len();
  Hello hello;
  struct Peer {
    ServiceClient* client;
    ServiceInfo* info;
  };
  const std::vector<Peer> peers = {{services.rollout.get(), &hello.rollout},
                                   {services.policy_trainer.get(), &hello.policy_trainer},
                                   {services.critic_trainer.get(), &hello.critic_trainer},
                                   {services.scorer.get(), &hello.scorer}};
  std::string first_name;
  int32_t first_size = 0;
  for (const Peer& peer : peers) {
    QUARTET_ASSIGN_OR_RETURN(*peer.info, CheckService(*peer.client, tokenizer_vocab_size, longest));
    for (const auto& [role, size] : peer.info->vocab_size()) {
      const std::string name = absl::StrCat(peer.client->service(), "'s ", role);
      if (first_name.empty()) {
        first_name = name;
        first_size = size;
      } else if (size != first_size) {
        return absl::FailedPreconditionError(absl::StrCat("vocabularies differ: ", first_name, " has ", first_size,
                                                          " tokens, ", name, " has ", size,
                                                          ". All models of a run must share one tokenizer"));
      }
    }
  }
  return hello;
}

}  // namespace quartet

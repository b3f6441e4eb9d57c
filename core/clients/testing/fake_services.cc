#include "core/clients/testing/fake_services.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/checkpoint/state_folder.h"
#include "core/clients/testing/byte_tokenizer.h"
#include "core/config/run_config.h"
#include "core/config/services.h"
#include "core/rl/options/token_arrays.h"
#include "core/service/rpc/health_service.h"
#include "core/service/rpc/message_size.h"
#include "core/service/rpc/service_version.h"
#include "core/service/rpc/status_conversion.h"
#include "core/service/rpc/stream_io.h"

namespace quartet {
namespace {

constexpr int32_t kVocabulary = 128;

template <typename Request, typename Stream>
absl::StatusOr<Batch<Request>> ReadBatch(Stream* stream) {
  static auto* limits = new BatchLimits("services.fake");
  return ReadBatch<Request>(stream, limits);
}

// Reads a batch of sequences and answers `value` for each action token.
template <typename Request, typename Reply, typename Stream>
grpc::Status AnswerValues(Stream* stream, float value, SpoilReply<TokenValues>* spoil,
                          TokenValues* (Reply::*mutable_values)()) {
  const auto batch = ReadBatch<Request>(stream);
  if (!batch.ok()) return ToGrpc(batch.status());
  const std::vector<ItemOf<Request>>& items = batch->items;
  // Backwards: replies may come in any order.
  for (size_t i = items.size(); i-- > 0;) {
    Reply reply;
    TokenValues* values = (reply.*mutable_values)();
    values->set_index(items[i].index());
    // Of a whole sequence: its last but one token, so that a test says in its data what it is worth.
    bool last_token = false;
    if constexpr (requires { batch->header.last_token(); }) last_token = batch->header.last_token();
    if (last_token) {
      values->add_values(static_cast<float>(items[i].ids(items[i].ids_size() - 2)));
    } else {
      values->mutable_values()->Resize(static_cast<int>(CountActions(items[i])), value);
    }
    if (spoil != nullptr) (*spoil)(values);
    stream->Write(reply);
  }
  return grpc::Status::OK;
}

}  // namespace

class FakeServices::RolloutService : public Rollout::Service {
 public:
  explicit RolloutService(FakeServices* fake) : fake_(fake) {}
  grpc::Status GetInfo(grpc::ServerContext*, const GetInfoRequest*, ServiceInfo* info) override {
    return fake_->Info("rollout", info);
  }
  grpc::Status Generate(grpc::ServerContext*,
                        grpc::ServerReaderWriter<GenerateReply, GenerateRequest>* stream) override {
    if (grpc::Status s = fake_->Begin("rollout.Generate"); !s.ok()) return s;
    const auto batch = ReadBatch<GenerateRequest>(stream);
    if (!batch.ok()) return ToGrpc(batch.status());
    const GenerateHeader* header = &batch->header;
    const std::vector<Prompt>& prompts = batch->items;
    {
      std::lock_guard<std::mutex> lock(fake_->mutex_);
      fake_->generations_.push_back(*header);
      if (header->policy_version() != fake_->rollout_version_) {
        return grpc::Status(grpc::FAILED_PRECONDITION,
                            absl::StrCat("policy version ", header->policy_version(), " was asked for, but ",
                                         fake_->rollout_version_, " is in use"));
      }
    }
    for (size_t i = prompts.size(); i-- > 0;) {
      for (int sample = 0; sample < header->sampling().n_samples(); ++sample) {
        GeneratedSequence sequence;
        sequence.set_prompt_index(prompts[i].index());
        sequence.set_sample(sample);
        *sequence.mutable_tokens()->mutable_ids() = prompts[i].ids();
        sequence.mutable_tokens()->mutable_action_mask()->Resize(prompts[i].ids_size(), false);
        for (int32_t id : {int32_t{'o'}, int32_t{'k'}, ByteTokenizer::kEnd}) {
          sequence.mutable_tokens()->add_ids(id);
          sequence.mutable_tokens()->add_action_mask(true);
          sequence.add_log_probs(fake_->rollout_log_prob);
          sequence.add_sampled_log_probs(fake_->sampled_log_prob);
          sequence.add_policy_versions(header->policy_version());
        }
        sequence.set_finish_reason(GeneratedSequence::STOP);
        fake_->spoil_generated(&sequence);
        GenerateReply reply;
        *reply.mutable_sequence() = std::move(sequence);
        stream->Write(reply);
      }
    }
    return grpc::Status::OK;
  }
  grpc::Status BeginUpdate(grpc::ServerContext*, const BeginUpdateRequest* request, BeginUpdateReply*) override {
    return fake_->Change("rollout", "BeginUpdate", request->identity(), [&] {
      fake_->staged_version_ = request->manifest().version();
      return grpc::Status::OK;
    });
  }
  grpc::Status CommitUpdate(grpc::ServerContext*, const CommitUpdateRequest* request,
                            CommitUpdateReply* reply) override {
    return fake_->Change("rollout", "CommitUpdate", request->identity(), [&] {
      if (request->version() != fake_->staged_version_) return grpc::Status(grpc::FAILED_PRECONDITION, "not staged");
      fake_->rollout_version_ = fake_->staged_version_;
      reply->set_policy_version(fake_->rollout_version_);
      reply->set_pause_seconds(0.125);
      return grpc::Status::OK;
    });
  }
  grpc::Status AbortUpdate(grpc::ServerContext*, const AbortUpdateRequest*, AbortUpdateReply*) override {
    return fake_->Begin("rollout.AbortUpdate");
  }
  grpc::Status Sleep(grpc::ServerContext*, const SleepRequest* request, SleepReply*) override {
    return fake_->Change("rollout", absl::StrCat("Sleep at level ", request->level()), request->identity(), [&] {
      fake_->rollout_paused_ = fake_->rollout_asleep_ = true;
      return grpc::Status::OK;
    });
  }
  grpc::Status WakeUp(grpc::ServerContext*, const WakeUpRequest* request, WakeUpReply*) override {
    return fake_->Change("rollout", "WakeUp", request->identity(), [&] {
      fake_->rollout_asleep_ = false;
      return grpc::Status::OK;
    });
  }
  grpc::Status Resume(grpc::ServerContext*, const ResumeRequest* request, ResumeReply*) override {
    return fake_->Change("rollout", "Resume", request->identity(), [&] {
      fake_->rollout_paused_ = false;
      return fake_->rollout_asleep_ ? grpc::Status(grpc::FAILED_PRECONDITION, "asleep") : grpc::Status::OK;
    });
  }

 private:
  FakeServices* const fake_;
};

class FakeServices::PolicyTrainerService : public PolicyTrainer::Service {
 public:
  explicit PolicyTrainerService(FakeServices* fake) : fake_(fake) {}
  grpc::Status GetInfo(grpc::ServerContext*, const GetInfoRequest*, ServiceInfo* info) override {
    return fake_->Info("policy_trainer", info);
  }
  grpc::Status LogProbs(grpc::ServerContext*,
                        grpc::ServerReaderWriter<LogProbsReply, LogProbsRequest>* stream) override {
    if (grpc::Status s = fake_->Begin("policy_trainer.LogProbs"); !s.ok()) return s;
    return AnswerValues<LogProbsRequest, LogProbsReply>(stream, fake_->trainer_log_prob, &fake_->spoil_values,
                                                        &LogProbsReply::mutable_log_probs);
  }
  grpc::Status Update(grpc::ServerContext*, grpc::ServerReader<PolicyUpdateRequest>* reader,
                      PolicyUpdateReply* reply) override {
    if (grpc::Status s = fake_->Begin("policy_trainer.Update"); !s.ok()) return s;
    auto batch = ReadBatch<PolicyUpdateRequest>(reader);
    if (!batch.ok()) return ToGrpc(batch.status());
    std::lock_guard<std::mutex> lock(fake_->mutex_);
    fake_->identities_["policy_trainer"].push_back(batch->header.identity());
    fake_->policy_updates_.push_back(batch->header);
    fake_->policy_batches_.push_back(std::move(batch->items));
    reply->set_loss(0.25);
    reply->set_clip_fraction(0.125);
    reply->set_entropy(1.5);
    reply->set_grad_norm(2);
    reply->set_optimizer_steps(++fake_->optimizer_steps_["policy_trainer"]);
    reply->set_tokens(1000);
    reply->set_computed_tokens(250);
    reply->set_micro_batches(3);
    reply->set_balance(0.5);
    fake_->spoil_policy_update(reply);
    return grpc::Status::OK;
  }
  grpc::Status Publish(grpc::ServerContext*, const PublishRequest* request, PublishReply* reply) override {
    return fake_->Change("policy_trainer", "Publish", request->identity(), [&] {
      reply->mutable_manifest()->set_version(request->version());
      return grpc::Status::OK;
    });
  }
  grpc::Status SaveCheckpoint(grpc::ServerContext*, const SaveCheckpointRequest* request,
                              SaveCheckpointReply* reply) override {
    return fake_->MakeCheckpoint(*request, "policy", reply);
  }
  grpc::Status Sleep(grpc::ServerContext*, const SleepTrainerRequest*, SleepTrainerReply*) override {
    return fake_->Begin("policy_trainer.Sleep");
  }

 private:
  FakeServices* const fake_;
};

class FakeServices::CriticTrainerService : public CriticTrainer::Service {
 public:
  explicit CriticTrainerService(FakeServices* fake) : fake_(fake) {}
  grpc::Status GetInfo(grpc::ServerContext*, const GetInfoRequest*, ServiceInfo* info) override {
    return fake_->Info("critic_trainer", info);
  }
  grpc::Status Values(grpc::ServerContext*, grpc::ServerReaderWriter<ValuesReply, ValuesRequest>* stream) override {
    if (grpc::Status s = fake_->Begin("critic_trainer.Values"); !s.ok()) return s;
    return AnswerValues<ValuesRequest, ValuesReply>(stream, fake_->value, nullptr, &ValuesReply::mutable_values);
  }
  grpc::Status Update(grpc::ServerContext*, grpc::ServerReader<CriticUpdateRequest>* reader,
                      CriticUpdateReply* reply) override {
    if (grpc::Status s = fake_->Begin("critic_trainer.Update"); !s.ok()) return s;
    const auto batch = ReadBatch<CriticUpdateRequest>(reader);
    if (!batch.ok()) return ToGrpc(batch.status());
    std::lock_guard<std::mutex> lock(fake_->mutex_);
    fake_->identities_["critic_trainer"].push_back(batch->header.identity());
    fake_->critic_updates_.push_back(batch->header);
    fake_->critic_batches_.push_back(batch->items);
    reply->set_loss(0.75);
    reply->set_optimizer_steps(++fake_->optimizer_steps_["critic_trainer"]);
    reply->set_tokens(2000);
    reply->set_computed_tokens(2000);
    reply->set_micro_batches(4);
    reply->set_balance(0.75);
    fake_->spoil_critic_update(reply);
    return grpc::Status::OK;
  }
  grpc::Status SaveCheckpoint(grpc::ServerContext*, const SaveCheckpointRequest* request,
                              SaveCheckpointReply* reply) override {
    return fake_->MakeCheckpoint(*request, "critic", reply);
  }
  grpc::Status Sleep(grpc::ServerContext*, const SleepTrainerRequest*, SleepTrainerReply*) override {
    return fake_->Begin("critic_trainer.Sleep");
  }

 private:
  FakeServices* const fake_;
};

class FakeServices::ScorerService : public Scorer::Service {
 public:
  explicit ScorerService(FakeServices* fake) : fake_(fake) {}
  grpc::Status GetInfo(grpc::ServerContext*, const GetInfoRequest*, ServiceInfo* info) override {
    return fake_->Info("scorer", info);
  }
  grpc::Status Score(grpc::ServerContext*, grpc::ServerReaderWriter<ScoreReply, ScoreRequest>* stream) override {
    if (grpc::Status s = fake_->Begin("scorer.Score"); !s.ok()) return s;
    const auto batch = ReadBatch<ScoreRequest>(stream);
    if (!batch.ok()) return ToGrpc(batch.status());
    for (const ScoreItem& item : batch->items) {
      if (item.response() != "ok") return grpc::Status(grpc::INVALID_ARGUMENT, "response: " + item.response());
      ScoreReply reply;
      reply.set_index(item.tokens().index());
      reply.set_reward(item.tokens().index() % 2 == 0 ? 1.0f : 0.0f);
      reply.set_score(reply.reward());
      (*reply.mutable_parts())["exact_match"] = reply.reward();
      fake_->spoil_score(&reply);
      stream->Write(reply);
    }
    return grpc::Status::OK;
  }
  grpc::Status ReferenceLogProbs(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<ReferenceLogProbsReply, ReferenceLogProbsRequest>* stream) override {
    if (grpc::Status s = fake_->Begin("scorer.ReferenceLogProbs"); !s.ok()) return s;
    return AnswerValues<ReferenceLogProbsRequest, ReferenceLogProbsReply>(stream, fake_->reference_log_prob, nullptr,
                                                                          &ReferenceLogProbsReply::mutable_log_probs);
  }

 private:
  FakeServices* const fake_;
};

FakeServices::FakeServices() {
  const auto start = [this](const std::string& name, std::unique_ptr<grpc::Service> service) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service.get());
    auto health = std::make_unique<HealthService>(std::set<std::string>(), [] { return true; });
    health->SetServing(true);
    builder.RegisterService(health.get());
    services_.push_back(std::move(health));
    // As a service that knows no traces.
    services_.push_back(std::make_unique<Trace::Service>());
    builder.RegisterService(services_.back().get());
    servers_[name] = builder.BuildAndStart();
    QUARTET_CHECK(servers_[name] != nullptr);
    ports_[name] = port;
    services_.push_back(std::move(service));
  };
  start("rollout", std::make_unique<RolloutService>(this));
  start("policy_trainer", std::make_unique<PolicyTrainerService>(this));
  start("critic_trainer", std::make_unique<CriticTrainerService>(this));
  start("scorer", std::make_unique<ScorerService>(this));
}

FakeServices::~FakeServices() {
  for (auto& [name, server] : servers_) {
    if (server) server->Shutdown(std::chrono::system_clock::now());
  }
}

void FakeServices::Kill(const std::string& service) {
  servers_.at(service)->Shutdown(std::chrono::system_clock::now());
}

std::string FakeServices::address(const std::string& service) const {
  return absl::StrCat("127.0.0.1:", ports_.at(service));
}

RunConfig FakeServices::MakeConfig(const std::string& folder, int steps) const {
  // Orders what a test has set so far before what the servers' threads, which take the lock in Begin, read.
  std::lock_guard<std::mutex> lock(mutex_);
  std::ofstream prompts(folder + "/prompts.jsonl");
  for (int i = 0; i < 6; ++i) prompts << "{\"prompt\": \"say " << i << "\", \"label\": \"ok\"}\n";
  prompts.close();
  RunConfig config;
  config.set_run_dir(folder + "/run");
  config.mutable_data()->add_prompt_data(folder + "/prompts.jsonl");
  config.mutable_data()->set_prompt_max_len(8);
  config.mutable_rollout()->set_rollout_batch_size(4);
  config.mutable_rollout()->set_n_samples_per_prompt(2);
  config.mutable_rollout()->set_generate_max_len(5);
  config.mutable_actor()->set_pretrain(folder);
  config.mutable_critic()->set_pretrain(folder);
  config.mutable_reward()->add_source()->set_rule("exact_match");
  config.mutable_train()->set_max_steps(steps);
  config.mutable_train()->set_call_timeout_seconds(20);
  for (const auto& [service, port] : ports_) MutablePlacementOf(&config, service)->set_listen(address(service));
  const absl::Status status = ResolveRunConfig(&config, "");
  QUARTET_CHECK(status.ok()) << status.message();
  return config;
}

grpc::Status FakeServices::Begin(const std::string& call) {
  std::function<grpc::Status(const std::string&)> hook;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(call);
    hook = hook_;
  }
  return hook ? hook(call) : grpc::Status::OK;
}

grpc::Status FakeServices::Change(const std::string& service, const std::string& call, const CallIdentity& identity,
                                  const std::function<grpc::Status()>& work) {
  if (grpc::Status s = Begin(absl::StrCat(service, ".", call)); !s.ok()) return s;
  std::lock_guard<std::mutex> lock(mutex_);
  identities_[service].push_back(identity);
  return work();
}

grpc::Status FakeServices::Info(const std::string& service, ServiceInfo* info) {
  if (grpc::Status s = Begin(service + ".GetInfo"); !s.ok()) return s;
  info->set_service(service);
  SayVersion(info);
  for (auto* sizes : {info->mutable_vocab_size(), info->mutable_tokenizer_vocab_size()}) {
    (*sizes)[service == "scorer" ? "reference" : "model"] = kVocabulary;
  }
  info->set_max_model_len(64);
  RankInfo* rank = info->add_ranks();
  MemoryUse* use = rank->add_memory();
  use->set_category("parameters");
  use->set_peak_bytes(1000);
  rank = info->add_ranks();
  rank->set_rank(1);
  use = rank->add_memory();
  use->set_category("parameters");
  use->set_peak_bytes(2000);
  use = rank->add_memory();
  use->set_category("optimizer");
  use->set_tier("host");
  use->set_peak_bytes(3000);
  MemoryTotal* total = rank->add_memory_totals();
  total->set_tier("device");
  total->set_peak_bytes(2500);
  total = rank->add_memory_totals();
  total->set_tier("host");
  total->set_peak_bytes(3000);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto fields = ServiceFields(configuration_, service);
    info->mutable_configuration()->insert(fields.begin(), fields.end());
    if (service == "rollout") {
      info->set_policy_version(rollout_version_);
      (*info->mutable_metrics())["rollout/paused"] = rollout_paused_ ? 1 : 0;
      (*info->mutable_metrics())["rollout/asleep"] = rollout_asleep_ ? 1 : 0;
    }
    for (RankInfo& each : *info->mutable_ranks()) each.set_optimizer_steps(optimizer_steps_[service]);
  }
  spoil_info(info);
  return grpc::Status::OK;
}

grpc::Status FakeServices::MakeCheckpoint(const SaveCheckpointRequest& request, const std::string& name,
                                          SaveCheckpointReply* reply) {
  return Change(name + "_trainer", "SaveCheckpoint", request.identity(), [&] {
    reply->set_folder(request.checkpoint_id() + "/" + name);
    std::filesystem::create_directories(checkpoint_root_ + "/" + reply->folder());
    if (!request.save_optimizer()) return grpc::Status::OK;
    reply->set_state_folder(reply->folder() + "_state");
    const std::string folder = checkpoint_root_ + "/" + reply->state_folder();
    std::filesystem::create_directories(folder);
    StateManifest manifest;
    manifest.optimizer_steps = optimizer_steps_[name + "_trainer"];
    reply->set_state_hash(WriteStateManifest(folder, manifest).value());
    return grpc::Status::OK;
  });
}

void FakeServices::SetOptimizerSteps(int64_t steps) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const char* trainer : {"policy_trainer", "critic_trainer"}) optimizer_steps_[trainer] = steps;
}

void FakeServices::SetPaused(bool paused, bool asleep) {
  std::lock_guard<std::mutex> lock(mutex_);
  rollout_paused_ = paused;
  rollout_asleep_ = asleep;
}

void FakeServices::SetHook(std::function<grpc::Status(const std::string&)> hook) {
  std::lock_guard<std::mutex> lock(mutex_);
  hook_ = std::move(hook);
}
void FakeServices::SetConfiguration(const RunConfig& config) {
  std::lock_guard<std::mutex> lock(mutex_);
  configuration_ = config;
}

void FakeServices::SetCheckpointRoot(const std::string& folder) {
  std::lock_guard<std::mutex> lock(mutex_);
  checkpoint_root_ = folder;
}

std::vector<std::string> FakeServices::calls() {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}
std::vector<PolicyUpdateHeader> FakeServices::policy_updates() {
  std::lock_guard<std::mutex> lock(mutex_);
  return policy_updates_;
}
std::vector<std::vector<TrainingSequence>> FakeServices::policy_batches() {
  std::lock_guard<std::mutex> lock(mutex_);
  return policy_batches_;
}
std::vector<CriticUpdateHeader> FakeServices::critic_updates() {
  std::lock_guard<std::mutex> lock(mutex_);
  return critic_updates_;
}
std::vector<std::vector<TrainingSequence>> FakeServices::critic_batches() {
  std::lock_guard<std::mutex> lock(mutex_);
  return critic_batches_;
}
std::vector<GenerateHeader> FakeServices::generations() {
  std::lock_guard<std::mutex> lock(mutex_);
  return generations_;
}
std::vector<CallIdentity> FakeServices::identities(const std::string& service) {
  std::lock_guard<std::mutex> lock(mutex_);
  return identities_[service];
}

}  // namespace quartet

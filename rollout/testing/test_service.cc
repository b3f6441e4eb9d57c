#include "rollout/testing/test_service.h"

#include <cstring>
#include <stdexcept>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/config/run_config.h"
#include "core/safetensors/reader.h"
#include "core/service/rpc/health.grpc.pb.h"
#include "rollout/rollout_service.h"

namespace quartet {

TestService::TestService(const Group& group, const std::function<void(RolloutConfig*)>& change,
                         const std::optional<LoraConfig>& lora) {
  const int ranks = group.ranks;
  RunConfig config;
  config.mutable_rollout()->set_pretrain(kTestModel);
  config.mutable_rollout()->set_dtype("fp32");
  config.mutable_rollout()->set_zero_stage(group.zero_stage);
  config.mutable_rollout()->set_tensor_parallel_size(group.tensor_parallel_size);
  config.mutable_rollout()->set_max_model_len(128);
  config.mutable_services()->mutable_rollout()->set_ranks(ranks);
  if (change) change(config.mutable_rollout());
  if (lora.has_value()) *config.mutable_actor()->mutable_lora() = *lora;
  const absl::Status resolved = ResolveRunConfig(&config, "");
  EXPECT_TRUE(resolved.ok()) << resolved;
  for (int rank = 0; rank < ranks; ++rank) {
    RankServerOptions options;
    options.service = {.service = "rollout", .create = CreateRolloutService};
    options.config = config;
    options.place = {rank, ranks, rank, ranks};
    options.listen = "127.0.0.1:0";
    if (rank > 0) options.leader = servers_[0]->context().endpoint;
    options.on_broken = [this](const absl::Status& status) {
      const std::lock_guard lock(broken_mutex_);
      broken_.Update(status);
    };
    auto server = RankServer::Create(std::move(options));
    if (!server.ok()) throw std::runtime_error(server.status().ToString());
    servers_.push_back(*std::move(server));
  }
  std::vector<std::thread> threads;
  for (auto& server : servers_) {
    threads.emplace_back([&server] {
      const absl::Status status = server->Serve();
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  stub_ = StubOf(0);
}

TestService::~TestService() {
  EXPECT_TRUE(may_break || Broken().ok()) << Broken();
  for (auto& server : servers_) server->Shutdown(absl::ZeroDuration(), "the test ends");
}

absl::Status TestService::Broken() {
  const std::lock_guard lock(broken_mutex_);
  return broken_;
}

bool TestService::IsServing() {
  const std::set<bool> answers = Health();
  EXPECT_EQ(answers.size(), 1u) << "the ranks differ";
  return *answers.begin();
}

std::set<bool> TestService::Health() {
  std::set<bool> answers;
  for (const auto& server : servers_) {
    const auto stub = grpc::health::v1::Health::NewStub(
        grpc::CreateChannel(server->context().endpoint, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse answer;
    EXPECT_TRUE(stub->Check(&context, grpc::health::v1::HealthCheckRequest(), &answer).ok());
    answers.insert(answer.status() == grpc::health::v1::HealthCheckResponse::SERVING);
  }
  return answers;
}

std::unique_ptr<Rollout::Stub> TestService::StubOf(int rank) {
  return Rollout::NewStub(grpc::CreateChannel(servers_[rank]->context().endpoint, grpc::InsecureChannelCredentials()));
}

TestService::Call::Call(Rollout::Stub& stub, const GenerateHeader& header, const std::vector<Prompt>& prompts,
                        std::chrono::milliseconds timeout) {
  context_.set_deadline(std::chrono::system_clock::now() + timeout);
  stream_ = stub.Generate(&context_);
  GenerateRequest request;
  *request.mutable_header() = header;
  stream_->Write(request);
  for (const Prompt& prompt : prompts) {
    *request.mutable_item() = prompt;
    stream_->Write(request);
  }
  stream_->WritesDone();
}

grpc::Status TestService::Call::ReadAll(Answers* answers) {
  GenerateReply reply;
  while (Read(&reply)) {
    const GeneratedSequence& sequence = reply.sequence();
    const auto key = std::pair(sequence.prompt_index(), sequence.sample());
    EXPECT_TRUE(answers->emplace(key, sequence).second) << "a sequence came twice";
  }
  return Finish();
}

std::map<std::pair<uint64_t, int32_t>, std::vector<int32_t>> TestService::Ids(uint64_t version) {
  GenerateHeader header = HeaderFor(5, 3, 1);
  header.set_policy_version(version);
  Answers answers;
  const grpc::Status status = Generate(header, SomePrompts(), &answers);
  EXPECT_TRUE(status.ok()) << status.error_message();
  std::map<std::pair<uint64_t, int32_t>, std::vector<int32_t>> ids;
  for (const auto& [key, sequence] : answers) {
    ids[key].assign(sequence.tokens().ids().begin(), sequence.tokens().ids().end());
    for (const uint64_t stamp : sequence.policy_versions()) EXPECT_EQ(stamp, version);
    EXPECT_EQ(sequence.policy_versions_size(), sequence.log_probs_size());
  }
  EXPECT_EQ(ids.size(), 15u);
  return ids;
}

CallIdentity TestService::NextIdentity() {
  CallIdentity identity;
  identity.set_run_id("test");
  identity.set_sequence(++sequence_);
  identity.set_epoch(1);
  return identity;
}

grpc::Status TestService::Begin(const WeightManifest& manifest, uint64_t* bytes) {
  grpc::ClientContext context;
  BeginUpdateRequest request;
  *request.mutable_identity() = NextIdentity();
  *request.mutable_manifest() = manifest;
  BeginUpdateReply reply;
  grpc::Status status = stub_->BeginUpdate(&context, request, &reply);
  if (bytes != nullptr) *bytes = reply.bytes_pulled();
  return status;
}

grpc::Status TestService::Commit(uint64_t version) {
  CommitUpdateRequest request;
  *request.mutable_identity() = NextIdentity();
  request.set_version(version);
  return Commit(request);
}

grpc::Status TestService::Commit(const CommitUpdateRequest& request, CommitUpdateReply* reply) {
  grpc::ClientContext context;
  CommitUpdateReply own;
  return stub_->CommitUpdate(&context, request, reply != nullptr ? reply : &own);
}

grpc::Status TestService::Pause(PauseRequest::Mode mode, uint64_t* in_flight) {
  grpc::ClientContext context;
  PauseRequest request;
  *request.mutable_identity() = NextIdentity();
  request.set_mode(mode);
  PauseReply reply;
  grpc::Status status = stub_->Pause(&context, request, &reply);
  if (in_flight != nullptr) *in_flight = reply.sequences_in_flight();
  return status;
}

grpc::Status TestService::Resume() {
  grpc::ClientContext context;
  ResumeRequest request;
  *request.mutable_identity() = NextIdentity();
  ResumeReply reply;
  return stub_->Resume(&context, request, &reply);
}

grpc::Status TestService::Sleep(uint64_t* bytes_released, int32_t level) {
  grpc::ClientContext context;
  SleepRequest request;
  request.set_level(level);
  *request.mutable_identity() = NextIdentity();
  SleepReply reply;
  grpc::Status status = stub_->Sleep(&context, request, &reply);
  *bytes_released = reply.bytes_released();
  return status;
}

grpc::Status TestService::WakeUp() {
  grpc::ClientContext context;
  WakeUpRequest request;
  *request.mutable_identity() = NextIdentity();
  WakeUpReply reply;
  return stub_->WakeUp(&context, request, &reply);
}

int64_t TestService::Bytes(const std::string& category) {
  int64_t bytes = 0;
  const ServiceInfo info = Info();
  for (const RankInfo& rank : info.ranks()) {
    for (const MemoryUse& use : rank.memory()) bytes += use.category() == category ? use.current_bytes() : 0;
  }
  return bytes;
}

void TestService::Await(const std::string& name, double value) {
  for (int i = 0; i < 5000 && Metric(name) != value; ++i) absl::SleepFor(absl::Milliseconds(2));
  EXPECT_EQ(Metric(name), value) << name;
}

grpc::Status TestService::Abort() {
  grpc::ClientContext context;
  AbortUpdateRequest request;
  *request.mutable_identity() = NextIdentity();
  AbortUpdateReply reply;
  return stub_->AbortUpdate(&context, request, &reply);
}

ServiceInfo TestService::Info() {
  grpc::ClientContext context;
  ServiceInfo info;
  const grpc::Status status = stub_->GetInfo(&context, GetInfoRequest(), &info);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return info;
}

GenerateHeader HeaderFor(size_t prompts, int32_t samples, float temperature) {
  GenerateHeader header;
  header.set_num_items(prompts);
  SamplingParams& sampling = *header.mutable_sampling();
  sampling.set_temperature(temperature);
  sampling.set_top_p(1);
  sampling.set_max_new_tokens(20);
  sampling.set_n_samples(samples);
  sampling.set_seed(3);
  return header;
}

GenerateHeader LongHeader(size_t prompts, int32_t samples, int32_t tokens) {
  GenerateHeader header = HeaderFor(prompts, samples, 1);
  header.mutable_sampling()->set_ignore_eos(true);
  header.mutable_sampling()->set_max_new_tokens(tokens);
  return header;
}

std::vector<Prompt> SomePrompts() {
  std::vector<Prompt> prompts;
  for (const int length : {3, 20, 1, 40, 17}) {
    Prompt& prompt = prompts.emplace_back();
    prompt.set_index(100 + prompts.size());
    for (int i = 0; i < length; ++i) prompt.add_ids((i * 7 + length) % 98 + 3);
  }
  return prompts;
}

std::unique_ptr<FakePublisher> Publish(uint64_t version, bool negate) {
  const auto reader = CheckpointReader::Open(kTestModel);
  EXPECT_TRUE(reader.ok()) << reader.status();
  std::vector<ParameterSpec> tensors;
  std::vector<std::vector<char>> values;
  for (const auto& [name, info] : (*reader)->tensors()) {
    tensors.push_back({.name = name, .shape = info.shape});
    std::vector<float> floats(info.numel());
    EXPECT_TRUE((*reader)->ReadRange(name, 0, info.numel(), floats.data()).ok());
    if (negate) {
      for (float& x : floats) x = -x;
    }
    std::vector<char>& bytes = values.emplace_back(floats.size() * 4);
    std::memcpy(bytes.data(), floats.data(), bytes.size());
  }
  return std::make_unique<FakePublisher>(version, Dtype::kF32, tensors, values, 2);
}

std::string NameOf(const testing::TestParamInfo<Group>& info) {
  const Group& group = info.param;
  return absl::StrCat(group.ranks, "Ranks", group.zero_stage == 3 ? "Sharded" : "",
                      group.tensor_parallel_size > 1 ? "TensorParallel" : "");
}

}  // namespace quartet

// The whole service, ranks as threads of this process, over real sockets.

#include "rollout/rollout_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/config/run_config.h"
#include "core/safetensors/reader.h"
#include "core/service/health.grpc.pb.h"
#include "core/service/rank_server.h"
#include "gtest/gtest.h"
#include "proto/rollout.grpc.pb.h"
#include "rollout/cut_off_proxy.h"
#include "rollout/fake_publisher.h"

namespace quartet {
namespace {

using Fault = FakePublisher::Fault;
using Answers = std::map<std::pair<uint64_t, int32_t>, GeneratedSequence>;

constexpr char kModel[] = "core/model/testdata/llama";

// Ranks of a service and how they hold the model.
struct Group {
  int ranks = 1;
  int zero_stage = 0;
  int tensor_parallel_size = 1;
};

class Service {
 public:
  explicit Service(const Group& group, const std::function<void(RolloutConfig*)>& change = nullptr) {
    const int ranks = group.ranks;
    RunConfig config;
    config.mutable_rollout()->set_pretrain(kModel);
    config.mutable_rollout()->set_dtype("fp32");
    config.mutable_rollout()->set_zero_stage(group.zero_stage);
    config.mutable_rollout()->set_tensor_parallel_size(group.tensor_parallel_size);
    config.mutable_rollout()->set_max_model_len(128);
    config.mutable_services()->mutable_rollout()->set_ranks(ranks);
    if (change) change(config.mutable_rollout());
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
        if (!ending_) ADD_FAILURE() << "broken: " << status;
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
  ~Service() {
    ending_ = true;  // the others notice that rank 0 is gone
    for (auto& server : servers_) server->Shutdown(absl::ZeroDuration(), "the test ends");
  }

  // What all ranks' health services say.
  bool IsServing() {
    std::set<bool> answers;
    for (const auto& server : servers_) {
      const auto stub = grpc::health::v1::Health::NewStub(
          grpc::CreateChannel(server->context().endpoint, grpc::InsecureChannelCredentials()));
      grpc::ClientContext context;
      grpc::health::v1::HealthCheckResponse answer;
      EXPECT_TRUE(stub->Check(&context, grpc::health::v1::HealthCheckRequest(), &answer).ok());
      answers.insert(answer.status() == grpc::health::v1::HealthCheckResponse::SERVING);
    }
    EXPECT_EQ(answers.size(), 1u) << "the ranks differ";
    return *answers.begin();
  }

  std::unique_ptr<Rollout::Stub> StubOf(int rank) {
    return Rollout::NewStub(
        grpc::CreateChannel(servers_[rank]->context().endpoint, grpc::InsecureChannelCredentials()));
  }

  grpc::Status Generate(const GenerateHeader& header, const std::vector<Prompt>& prompts, Answers* answers) {
    return Stream(header, prompts).ReadAll(answers);
  }

  // A call of Generate that is under way.
  class Call {
   public:
    Call(Rollout::Stub& stub, const GenerateHeader& header, const std::vector<Prompt>& prompts,
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
    bool Read(GenerateReply* reply) { return stream_->Read(reply); }
    void Cancel() { context_.TryCancel(); }
    grpc::Status Finish() { return stream_->Finish(); }
    grpc::Status ReadAll(Answers* answers) {
      GenerateReply reply;
      while (Read(&reply)) {
        const GeneratedSequence& sequence = reply.sequence();
        const auto key = std::pair(sequence.prompt_index(), sequence.sample());
        EXPECT_TRUE(answers->emplace(key, sequence).second) << "a sequence came twice";
      }
      return Finish();
    }

   private:
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReaderWriter<GenerateRequest, GenerateReply>> stream_;
  };
  Call Stream(const GenerateHeader& header, const std::vector<Prompt>& prompts,
              std::chrono::milliseconds timeout = std::chrono::minutes(2)) {
    return Call(*stub_, header, prompts, timeout);
  }

  // What version `version` answers to the usual prompts.
  std::map<std::pair<uint64_t, int32_t>, std::vector<int32_t>> Ids(uint64_t version);

  CallIdentity NextIdentity() {
    CallIdentity identity;
    identity.set_run_id("test");
    identity.set_sequence(++sequence_);
    identity.set_epoch(1);
    return identity;
  }
  grpc::Status Begin(const WeightManifest& manifest, uint64_t* bytes = nullptr) {
    grpc::ClientContext context;
    BeginUpdateRequest request;
    *request.mutable_identity() = NextIdentity();
    *request.mutable_manifest() = manifest;
    BeginUpdateReply reply;
    const grpc::Status status = stub_->BeginUpdate(&context, request, &reply);
    if (bytes != nullptr) *bytes = reply.bytes_pulled();
    return status;
  }
  grpc::Status Commit(uint64_t version) {
    CommitUpdateRequest request;
    *request.mutable_identity() = NextIdentity();
    request.set_version(version);
    return Commit(request);
  }
  grpc::Status Commit(const CommitUpdateRequest& request) {
    grpc::ClientContext context;
    CommitUpdateReply reply;
    return stub_->CommitUpdate(&context, request, &reply);
  }
  grpc::Status Pause(PauseRequest::Mode mode, uint64_t* in_flight = nullptr) {
    grpc::ClientContext context;
    PauseRequest request;
    *request.mutable_identity() = NextIdentity();
    request.set_mode(mode);
    PauseReply reply;
    const grpc::Status status = stub_->Pause(&context, request, &reply);
    if (in_flight != nullptr) *in_flight = reply.sequences_in_flight();
    return status;
  }
  grpc::Status Resume() {
    grpc::ClientContext context;
    ResumeRequest request;
    *request.mutable_identity() = NextIdentity();
    ResumeReply reply;
    return stub_->Resume(&context, request, &reply);
  }
  grpc::Status Sleep(uint64_t* bytes_released, int32_t level = 0) {
    grpc::ClientContext context;
    SleepRequest request;
    request.set_level(level);
    *request.mutable_identity() = NextIdentity();
    SleepReply reply;
    const grpc::Status status = stub_->Sleep(&context, request, &reply);
    *bytes_released = reply.bytes_released();
    return status;
  }
  grpc::Status WakeUp() {
    grpc::ClientContext context;
    WakeUpRequest request;
    *request.mutable_identity() = NextIdentity();
    WakeUpReply reply;
    return stub_->WakeUp(&context, request, &reply);
  }
  // Of all ranks, now.
  int64_t Bytes(const std::string& category) {
    int64_t bytes = 0;
    const ServiceInfo info = Info();
    for (const RankInfo& rank : info.ranks()) {
      for (const MemoryUse& use : rank.memory()) bytes += use.category() == category ? use.current_bytes() : 0;
    }
    return bytes;
  }
  double Metric(const std::string& name) { return Info().metrics().at("rollout/" + name); }
  // Until the metric has that value.
  void Await(const std::string& name, double value) {
    for (int i = 0; i < 5000 && Metric(name) != value; ++i) absl::SleepFor(absl::Milliseconds(2));
    EXPECT_EQ(Metric(name), value) << name;
  }
  grpc::Status Abort() {
    grpc::ClientContext context;
    AbortUpdateRequest request;
    *request.mutable_identity() = NextIdentity();
    AbortUpdateReply reply;
    return stub_->AbortUpdate(&context, request, &reply);
  }
  ServiceInfo Info() {
    grpc::ClientContext context;
    ServiceInfo info;
    const grpc::Status status = stub_->GetInfo(&context, GetInfoRequest(), &info);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return info;
  }

 private:
  std::atomic<bool> ending_ = false;
  std::vector<std::unique_ptr<RankServer>> servers_;
  std::unique_ptr<Rollout::Stub> stub_;
  uint64_t sequence_ = 0;
};

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

std::vector<Prompt> SomePrompts() {
  std::vector<Prompt> prompts;
  for (const int length : {3, 20, 1, 40, 17}) {
    Prompt& prompt = prompts.emplace_back();
    prompt.set_index(100 + prompts.size());
    for (int i = 0; i < length; ++i) prompt.add_ids((i * 7 + length) % 98 + 3);
  }
  return prompts;
}

std::map<std::pair<uint64_t, int32_t>, std::vector<int32_t>> Service::Ids(uint64_t version) {
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

// The model's own weights, negated where `negate`; as a publisher has them.
std::unique_ptr<FakePublisher> Publish(uint64_t version, bool negate) {
  const auto reader = CheckpointReader::Open(kModel);
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

class RolloutServiceTest : public testing::TestWithParam<Group> {
 protected:
  // With few places, so that calls of hundreds of sequences are under way for long.
  Service service_{GetParam(), [](RolloutConfig* rollout) { rollout->set_max_num_seqs(4); }};
};
INSTANTIATE_TEST_SUITE_P(Groups, RolloutServiceTest,
                         testing::Values(Group{.ranks = 1}, Group{.ranks = 2}, Group{.ranks = 2, .zero_stage = 3},
                                         Group{.ranks = 2, .tensor_parallel_size = 2},
                                         Group{.ranks = 4, .tensor_parallel_size = 2}),
                         [](const auto& info) {
                           const Group& group = info.param;
                           return absl::StrCat(group.ranks, "Ranks", group.zero_stage == 3 ? "Sharded" : "",
                                               group.tensor_parallel_size > 1 ? "TensorParallel" : "");
                         });

// A header for answers that take long: `tokens` each, whatever the model says.
GenerateHeader LongHeader(size_t prompts, int32_t samples, int32_t tokens) {
  GenerateHeader header = HeaderFor(prompts, samples, 1);
  header.mutable_sampling()->set_ignore_eos(true);
  header.mutable_sampling()->set_max_new_tokens(tokens);
  return header;
}

TEST_P(RolloutServiceTest, HandsOutEachSequenceAsItEnds) {
  auto call = service_.Stream(LongHeader(5, 60, 80), SomePrompts());
  GenerateReply reply;
  ASSERT_TRUE(call.Read(&reply));
  EXPECT_EQ(reply.sequence().log_probs_size(), 80);
  // Most others have not begun.
  EXPECT_GT(service_.Metric("waiting"), 0);
  call.Cancel();
  while (call.Read(&reply)) {
  }
  service_.Await("kv_cache_usage", 0);
}

TEST_P(RolloutServiceTest, StreamsTokensWhereAsked) {
  GenerateHeader header = HeaderFor(5, 2, 1);
  header.set_stream_tokens(true);
  auto call = service_.Stream(header, SomePrompts());
  std::map<std::pair<uint64_t, int32_t>, GeneratedTokens> streamed;
  Answers answers;
  GenerateReply reply;
  while (call.Read(&reply)) {
    if (reply.has_sequence()) {
      answers[{reply.sequence().prompt_index(), reply.sequence().sample()}] = reply.sequence();
    } else {
      const std::pair key(reply.tokens().prompt_index(), reply.tokens().sample());
      EXPECT_EQ(answers.count(key), 0u) << "a token behind its sequence";
      streamed[key].MergeFrom(reply.tokens());
    }
  }
  ASSERT_TRUE(call.Finish().ok());
  EXPECT_EQ(answers.size(), 10u);
  for (const auto& [key, sequence] : answers) {
    const GeneratedTokens& tokens = streamed[key];
    ASSERT_EQ(tokens.ids_size(), sequence.log_probs_size());
    const int prompt = sequence.tokens().ids_size() - tokens.ids_size();
    for (int t = 0; t < tokens.ids_size(); ++t) {
      EXPECT_EQ(tokens.ids(t), sequence.tokens().ids(prompt + t));
      EXPECT_EQ(tokens.log_probs(t), sequence.log_probs(t));
    }
  }
}

TEST_P(RolloutServiceTest, ACallThatIsClosedOrLateGivesItsBlocksBackAndLeavesOthersAlone) {
  const auto expected = service_.Ids(0);
  auto closed = service_.Stream(LongHeader(5, 100, 80), SomePrompts());
  auto late = service_.Stream(LongHeader(5, 100, 80), SomePrompts(), std::chrono::milliseconds(300));
  GenerateReply reply;
  ASSERT_TRUE(closed.Read(&reply));
  std::thread other([&] { EXPECT_EQ(service_.Ids(0), expected); });
  closed.Cancel();
  while (closed.Read(&reply)) {
  }
  EXPECT_EQ(closed.Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (late.Read(&reply)) {
  }
  EXPECT_EQ(late.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  other.join();
  service_.Await("running", 0);
  EXPECT_EQ(service_.Metric("kv_cache_usage"), 0);
  EXPECT_EQ(service_.Metric("waiting"), 0);
}

TEST_P(RolloutServiceTest, ManyCallsAtOnceGetWhatEachWouldGetAlone) {
  const auto expected = service_.Ids(0);
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) callers.emplace_back([&] { EXPECT_EQ(service_.Ids(0), expected); });
  for (std::thread& caller : callers) caller.join();
  service_.Await("kv_cache_usage", 0);
}

TEST_P(RolloutServiceTest, SequencesThatAPauseKeepsGoOnUnderNewWeights) {
  auto call = service_.Stream(LongHeader(5, 15, 80), SomePrompts());
  while (service_.Metric("generated_tokens") < 40) {
  }
  uint64_t in_flight = 0;
  ASSERT_TRUE(service_.Pause(PauseRequest::KEEP, &in_flight).ok());
  ASSERT_GT(in_flight, 0u);
  EXPECT_EQ(service_.Metric("paused"), 1);
  const double generated = service_.Metric("generated_tokens");
  const auto publisher = Publish(4, /*negate=*/true);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Commit(4).ok());
  EXPECT_EQ(service_.Metric("generated_tokens"), generated);
  // What comes during the pause is answered after it, by the version that is in use then.
  std::thread later([&] { service_.Ids(4); });
  ASSERT_TRUE(service_.Resume().ok());
  later.join();
  Answers answers;
  ASSERT_TRUE(call.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 75u);
  int both = 0;
  for (const auto& [key, sequence] : answers) {
    ASSERT_EQ(sequence.policy_versions_size(), 80);
    for (int t = 1; t < 80; ++t) EXPECT_GE(sequence.policy_versions(t), sequence.policy_versions(t - 1));
    both += sequence.policy_versions(0) == 0 && sequence.policy_versions(79) == 4;
  }
  EXPECT_GT(both, 0);
  EXPECT_EQ(service_.Metric("paused"), 0);
}

TEST_P(RolloutServiceTest, SleepsWithoutItsCacheAndGoesOnAfterwards) {
  const auto expected = service_.Ids(0);
  const int64_t whole = service_.Bytes("kv_cache");
  auto call = service_.Stream(LongHeader(5, 15, 80), SomePrompts());
  while (service_.Metric("running") == 0) {
  }
  uint64_t released = 0;
  ASSERT_TRUE(service_.Sleep(&released).ok());
  EXPECT_EQ(static_cast<int64_t>(released), whole);
  EXPECT_EQ(service_.Bytes("kv_cache"), 0);
  EXPECT_EQ(service_.Metric("asleep"), 1);
  EXPECT_EQ(service_.Resume().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(service_.Pause(PauseRequest::WAIT).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  // Weights can be updated meanwhile.
  const auto publisher = Publish(4, /*negate=*/false);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Commit(4).ok());
  ASSERT_TRUE(service_.WakeUp().ok());
  ASSERT_TRUE(service_.WakeUp().ok());
  EXPECT_EQ(service_.Bytes("kv_cache"), whole);
  EXPECT_EQ(service_.Metric("paused"), 1);
  ASSERT_TRUE(service_.Resume().ok());
  Answers answers;
  ASSERT_TRUE(call.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 75u);
  EXPECT_EQ(service_.Ids(4), expected);
}

TEST_P(RolloutServiceTest, SleepsWithoutItsWeightsAndReadsThemAgainOrTakesThemFromAnUpdate) {
  const auto expected = service_.Ids(0);
  const int64_t cache = service_.Bytes("kv_cache");
  const int64_t weights = service_.Bytes("parameters");
  ASSERT_GT(weights, 0);
  uint64_t released = 0;
  EXPECT_EQ(service_.Sleep(&released, 3).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(service_.Sleep(&released, -1).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(service_.Metric("asleep"), 0);
  EXPECT_TRUE(service_.IsServing());

  // Version 0 comes back from the folder; what was in flight goes on.
  auto call = service_.Stream(LongHeader(5, 15, 80), SomePrompts());
  while (service_.Metric("running") == 0) {
  }
  ASSERT_TRUE(service_.Sleep(&released, 1).ok());
  EXPECT_EQ(static_cast<int64_t>(released), cache);
  EXPECT_TRUE(service_.IsServing());
  ASSERT_TRUE(service_.Sleep(&released, 2).ok());
  EXPECT_FALSE(service_.IsServing());
  EXPECT_EQ(static_cast<int64_t>(released), weights);
  ASSERT_TRUE(service_.Sleep(&released, 1).ok());
  EXPECT_EQ(released, 0u);
  EXPECT_EQ(service_.Bytes("parameters"), 0);
  EXPECT_EQ(service_.Bytes("kv_cache"), 0);
  EXPECT_EQ(service_.Metric("weights_released"), 1);
  EXPECT_EQ(service_.Resume().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  ASSERT_TRUE(service_.WakeUp().ok());
  EXPECT_TRUE(service_.IsServing());
  EXPECT_EQ(service_.Bytes("parameters"), weights);
  EXPECT_EQ(service_.Metric("weights_released"), 0);
  ASSERT_TRUE(service_.Resume().ok());
  Answers answers;
  ASSERT_TRUE(call.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 75u);
  EXPECT_EQ(service_.Ids(0), expected);

  // A later one does not.
  const auto publisher = Publish(4, /*negate=*/true);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Commit(4).ok());
  const auto updated = service_.Ids(4);
  ASSERT_TRUE(service_.Sleep(&released, 2).ok());
  // With the memory that the next update would have had.
  EXPECT_EQ(static_cast<int64_t>(released), cache + 2 * weights);
  ASSERT_TRUE(service_.WakeUp().ok());
  EXPECT_EQ(service_.Metric("asleep"), 0);
  EXPECT_EQ(service_.Metric("weights_released"), 1);
  EXPECT_FALSE(service_.IsServing());
  GenerateHeader header = HeaderFor(5, 1, 1);
  header.set_policy_version(4);
  for (const grpc::Status& status :
       {service_.Generate(header, SomePrompts(), &answers), service_.Resume(), service_.Pause(PauseRequest::WAIT)}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_NE(status.error_message().find("Sleep released those of version 4"), std::string::npos)
        << status.error_message();
  }
  // But for an update, by the same version too, and not by one that fails or is older.
  publisher->set_fault(Fault::kFlipsABit, 3);
  EXPECT_EQ(service_.Begin(publisher->manifest()).error_code(), grpc::StatusCode::DATA_LOSS);
  publisher->set_fault(Fault::kNone, 3);
  EXPECT_EQ(service_.Begin(Publish(3, /*negate=*/true)->manifest()).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(service_.Metric("weights_released"), 1);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  EXPECT_EQ(service_.Bytes("parameters"), weights) << "no old weights lie beside the new ones";
  EXPECT_FALSE(service_.IsServing());
  ASSERT_TRUE(service_.Commit(4).ok());
  EXPECT_TRUE(service_.IsServing());
  EXPECT_EQ(service_.Metric("weights_released"), 0);
  ASSERT_TRUE(service_.Resume().ok());
  EXPECT_EQ(service_.Ids(4), updated);

  // Also while the rollout sleeps.
  ASSERT_TRUE(service_.Sleep(&released, 2).ok());
  const auto next = Publish(5, /*negate=*/false);
  ASSERT_TRUE(service_.Begin(next->manifest()).ok());
  ASSERT_TRUE(service_.Commit(5).ok());
  EXPECT_EQ(service_.Bytes("kv_cache"), 0);
  ASSERT_TRUE(service_.WakeUp().ok());
  ASSERT_TRUE(service_.Resume().ok());
  EXPECT_EQ(service_.Ids(5), expected);
}

TEST_P(RolloutServiceTest, APauseCanEndOrAwaitWhatIsInFlight) {
  auto aborted = service_.Stream(LongHeader(5, 60, 80), SomePrompts());
  while (service_.Metric("generated_tokens") < 40) {
  }
  ASSERT_TRUE(service_.Pause(PauseRequest::ABORT).ok());
  EXPECT_EQ(service_.Metric("kv_cache_usage"), 0);
  Answers answers;
  ASSERT_TRUE(aborted.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 300u);
  int cut = 0;
  for (const auto& [key, sequence] : answers) {
    EXPECT_EQ(sequence.log_probs_size(), sequence.policy_versions_size());
    EXPECT_EQ(sequence.finish_reason() == GeneratedSequence::ABORTED, sequence.log_probs_size() < 80);
    cut += sequence.finish_reason() == GeneratedSequence::ABORTED && sequence.log_probs_size() > 0;
  }
  EXPECT_GT(cut, 0);
  ASSERT_TRUE(service_.Resume().ok());

  auto awaited = service_.Stream(LongHeader(5, 2, 40), SomePrompts());
  while (service_.Metric("running") == 0) {
  }
  uint64_t in_flight = 1;
  ASSERT_TRUE(service_.Pause(PauseRequest::WAIT, &in_flight).ok());
  EXPECT_EQ(in_flight, 0u);
  answers.clear();
  ASSERT_TRUE(awaited.ReadAll(&answers).ok());
  for (const auto& [key, sequence] : answers) EXPECT_EQ(sequence.finish_reason(), GeneratedSequence::LENGTH);
  ASSERT_TRUE(service_.Resume().ok());
  EXPECT_EQ(service_.Pause(PauseRequest::MODE_UNSPECIFIED).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(RolloutService, RefusesWhatWouldWaitBehindTooMany) {
  Service service({.ranks = 2}, [](RolloutConfig* rollout) {
    rollout->set_max_num_seqs(2);
    rollout->set_max_waiting(60);
  });
  // 4 run, and a call that comes before 60 wait may make it more.
  auto first = service.Stream(LongHeader(5, 10, 80), SomePrompts());
  auto second = service.Stream(LongHeader(5, 12, 80), SomePrompts());
  while (service.Metric("running") + service.Metric("waiting") <= 64) {
  }
  Answers answers;
  const grpc::Status refused = service.Generate(HeaderFor(5, 2, 1), SomePrompts(), &answers);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_NE(refused.error_message().find("rollout.max_waiting"), std::string::npos) << refused.error_message();
  EXPECT_TRUE(first.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 50u);
  answers.clear();
  EXPECT_TRUE(second.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 60u);
  EXPECT_GT(service.Metric("generated_tokens_per_second"), 0);
  EXPECT_GT(service.Metric("prefill_tokens_per_second"), 0);
  EXPECT_GT(service.Metric("prefix_cache_hit_rate"), 0);
}

TEST(RolloutService, AnyGroupOfRanksTellsTheSameOfPrompts) {
  const auto told = [](const Group& group) {
    Service service(group);
    GenerateHeader header = HeaderFor(5, 2, 1);
    header.mutable_sampling()->set_max_new_tokens(0);
    header.mutable_sampling()->set_prompt_logprobs(1);
    Answers answers;
    const grpc::Status status = service.Generate(header, SomePrompts(), &answers);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(answers.size(), 10u);
    std::vector<float> log_probs;
    for (const auto& [key, sequence] : answers) {
      EXPECT_EQ(sequence.prompt_log_probs_size(), sequence.tokens().ids_size() - 1);
      EXPECT_EQ(sequence.prompt_alternatives_size(), sequence.tokens().ids_size() - 1);
      log_probs.insert(log_probs.end(), sequence.prompt_log_probs().begin(), sequence.prompt_log_probs().end());
    }
    return log_probs;
  };
  const std::vector<float> one = told({.ranks = 1});
  for (const Group& group :
       {Group{.ranks = 2}, Group{.ranks = 2, .zero_stage = 3}, Group{.ranks = 2, .tensor_parallel_size = 2},
        Group{.ranks = 4, .tensor_parallel_size = 2}}) {
    const std::vector<float> two = told(group);
    ASSERT_EQ(two.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-5);
  }
}

TEST(RolloutService, AnyGroupOfRanksGeneratesTheSame) {
  Service one({.ranks = 1});
  const auto expected = one.Ids(0);
  EXPECT_EQ(Service({.ranks = 2}).Ids(0), expected);
  EXPECT_EQ(Service({.ranks = 2, .zero_stage = 3}).Ids(0), expected);
  EXPECT_EQ(Service({.ranks = 2, .tensor_parallel_size = 2}).Ids(0), expected);
  EXPECT_EQ(Service({.ranks = 4, .tensor_parallel_size = 2}).Ids(0), expected);
}

TEST_P(RolloutServiceTest, TakesANewVersionAndServesTheOldOneUntilItIsCommitted) {
  const auto before = service_.Ids(0);
  const auto same = Publish(4, /*negate=*/false);
  const auto other = Publish(5, /*negate=*/true);
  uint64_t bytes = 0;
  grpc::Status status = service_.Begin(other->manifest(), &bytes);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(bytes, 0u);
  EXPECT_EQ(service_.Ids(0), before);
  ASSERT_TRUE(service_.Commit(5).ok());
  EXPECT_EQ(service_.Info().policy_version(), 5u);
  EXPECT_NE(service_.Ids(5), before);

  Answers answers;
  status = service_.Generate(HeaderFor(5, 1, 1), SomePrompts(), &answers);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("header.policy_version is 0, but the weights in use are version 5"),
            std::string::npos)
      << status.error_message();

  status = service_.Begin(same->manifest());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << status.error_message();
  const auto back = Publish(6, /*negate=*/false);
  ASSERT_TRUE(service_.Begin(back->manifest()).ok());
  ASSERT_TRUE(service_.Commit(6).ok());
  EXPECT_EQ(service_.Ids(6), before);
}

TEST_P(RolloutServiceTest, KeepsTheOldWeightsWhenAnUpdateFailsAndTakesTheNextOne) {
  const auto before = service_.Ids(0);
  const auto publisher = Publish(2, /*negate=*/true);
  publisher->set_fault(Fault::kFlipsABit, 3);
  grpc::Status status = service_.Begin(publisher->manifest());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_NE(status.error_message().find(publisher->manifest().tensors(3).name()), std::string::npos)
      << status.error_message();
  EXPECT_EQ(service_.Commit(2).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(service_.Ids(0), before);

  publisher->set_fault(Fault::kBreaks, 3);
  EXPECT_EQ(service_.Begin(publisher->manifest()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.Ids(0), before);

  for (const Fault fault : {Fault::kSkipsAChunk, Fault::kEndsEarly, Fault::kSendsAnotherRange}) {
    publisher->set_fault(fault, 3);
    status = service_.Begin(publisher->manifest());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS) << status.error_message();
    EXPECT_EQ(service_.Ids(0), before);
  }

  WeightManifest wrong = publisher->manifest();
  wrong.mutable_tensors(0)->add_shape(1);
  EXPECT_EQ(service_.Begin(wrong).error_code(), grpc::StatusCode::FAILED_PRECONDITION);

  publisher->set_fault(Fault::kNone, 3);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Abort().ok());
  EXPECT_EQ(service_.Commit(2).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(service_.Ids(0), before);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Commit(2).ok());
  EXPECT_NE(service_.Ids(2), before);

  const auto next = Publish(3, /*negate=*/false);
  next->Stop(1);
  EXPECT_EQ(service_.Begin(next->manifest()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.Info().policy_version(), 2u);
}

TEST_P(RolloutServiceTest, ASenderThatDiesAtAnyTenthOfTheTransferChangesNothing) {
  const auto greedy = [&](uint64_t version) {
    GenerateHeader header = HeaderFor(5, 1, 0);
    header.set_policy_version(version);
    Answers answers;
    const grpc::Status status = service_.Generate(header, SomePrompts(), &answers);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::vector<int32_t>> ids;
    for (const auto& [key, sequence] : answers) {
      ids.emplace_back(sequence.tokens().ids().begin(), sequence.tokens().ids().end());
    }
    return ids;
  };
  const auto before = greedy(0);
  const auto publisher = Publish(7, /*negate=*/true);
  // The second source goes through `proxy`.
  const auto manifest_through = [&](const CutOffProxy& proxy) {
    WeightManifest manifest = publisher->manifest();
    manifest.mutable_sources(1)->set_endpoint(proxy.endpoint());
    return manifest;
  };
  int64_t whole = 0;
  {
    const CutOffProxy proxy(publisher->manifest().sources(1).endpoint());
    ASSERT_TRUE(service_.Begin(manifest_through(proxy)).ok());
    ASSERT_TRUE(service_.Abort().ok());
    whole = proxy.passed();
    ASSERT_GT(whole, 10000);
  }
  for (int tenth = 0; tenth < 10; ++tenth) {
    const CutOffProxy proxy(publisher->manifest().sources(1).endpoint(), whole * tenth / 10);
    const grpc::Status status = service_.Begin(manifest_through(proxy));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << tenth << ": " << status.error_message();
    EXPECT_NE(status.error_message().find(proxy.endpoint()), std::string::npos) << status.error_message();
    EXPECT_EQ(service_.Commit(7).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_EQ(greedy(0), before) << tenth;
  }
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Commit(7).ok());
  EXPECT_NE(greedy(7), before);
}

TEST_P(RolloutServiceTest, AnswersARepeatedCommitWithoutDoingItTwice) {
  const auto publisher = Publish(1, /*negate=*/false);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  CommitUpdateRequest request;
  *request.mutable_identity() = service_.NextIdentity();
  request.set_version(1);
  ASSERT_TRUE(service_.Commit(request).ok());
  EXPECT_TRUE(service_.Commit(request).ok());
  EXPECT_EQ(service_.Info().last_applied().sequence(), request.identity().sequence());
  request.set_version(2);
  EXPECT_EQ(service_.Commit(request).error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_P(RolloutServiceTest, DescribesItself) {
  const ServiceInfo info = service_.Info();
  EXPECT_EQ(info.service(), "rollout");
  EXPECT_EQ(info.vocab_size().at("model"), 101);
  EXPECT_EQ(info.max_model_len(), 128);
  ASSERT_EQ(info.ranks_size(), GetParam().ranks);
  const auto reader = CheckpointReader::Open(kModel);
  ASSERT_TRUE(reader.ok()) << reader.status();
  int64_t parameters = 0;
  for (const auto& [name, tensor] : (*reader)->tensors()) parameters += tensor.numel();
  std::set<std::string> endpoints;
  for (const RankInfo& rank : info.ranks()) {
    endpoints.insert(rank.endpoint());
    EXPECT_EQ(rank.model_parameters(), parameters);
    EXPECT_EQ(rank.groups_size(), GetParam().ranks == 1 ? 0 : 1);
    EXPECT_GT(rank.peak_rss_bytes(), 0);
    for (const MemoryUse& use : rank.memory()) {
      if (use.category() != "parameters" && use.category() != "kv_cache") continue;
      EXPECT_GT(use.current_bytes(), 0) << use.category();
    }
  }
  EXPECT_EQ(static_cast<int>(endpoints.size()), GetParam().ranks);
}

TEST(RolloutService, RefusesBadRequestsByPromptFieldAndValue) {
  Service service({.ranks = 2});
  const auto refusal = [&](const GenerateHeader& header, const std::vector<Prompt>& prompts) {
    Answers answers;
    const grpc::Status status = service.Generate(header, prompts, &answers);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return status.error_message();
  };
  std::vector<Prompt> prompts = SomePrompts();
  prompts[2].set_ids(0, 101);
  EXPECT_EQ(refusal(HeaderFor(5, 1, 1), prompts), "prompt 103: ids[0] is 101; allowed: 0 to 100");
  prompts = SomePrompts();
  prompts[1].set_index(101);
  EXPECT_EQ(refusal(HeaderFor(5, 1, 1), prompts), "prompt 101: its index comes twice");
  EXPECT_EQ(refusal(HeaderFor(5, 0, 1), SomePrompts()), "sampling.n_samples is 0; allowed: at least 1");
  EXPECT_EQ(refusal(HeaderFor(6, 1, 1), SomePrompts()), "header.num_items is 6 but 5 items came");

  grpc::ClientContext context;
  ServiceInfo info;
  const grpc::Status follower = service.StubOf(1)->GetInfo(&context, GetInfoRequest(), &info);
  EXPECT_EQ(follower.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(follower.error_message().find("rank 0 at 127.0.0.1:"), std::string::npos) << follower.error_message();
}

}  // namespace
}  // namespace quartet

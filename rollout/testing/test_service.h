// The whole service for tests: ranks as threads of this process, over real sockets.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/service/ranks/rank_server.h"
#include "gtest/gtest.h"
#include "proto/rollout.grpc.pb.h"
#include "rollout/testing/fake_publisher.h"

namespace quartet {

// By prompt and sample.
using Answers = std::map<std::pair<uint64_t, int32_t>, GeneratedSequence>;

constexpr char kTestModel[] = "core/model/testdata/llama";

// Ranks of a service and how they hold the model.
struct Group {
  int ranks = 1;
  int zero_stage = 0;
  int tensor_parallel_size = 1;
};

class TestService {
 public:
  // With kTestModel and max_model_len 128, unless `change` says otherwise; with `lora` it takes adapters.
  explicit TestService(const Group& group, const std::function<void(RolloutConfig*)>& change = nullptr,
                       const std::optional<LoraConfig>& lora = std::nullopt);
  ~TestService();

  // Why its ranks cannot work together any more; a failure of the test, unless they may break.
  absl::Status Broken();
  bool may_break = false;

  // What all ranks' health services say.
  bool IsServing();
  bool AnyServing() { return Health().count(true) > 0; }
  std::unique_ptr<Rollout::Stub> StubOf(int rank);

  // A call of Generate that is under way.
  class Call {
   public:
    Call(Rollout::Stub& stub, const GenerateHeader& header, const std::vector<Prompt>& prompts,
         std::chrono::milliseconds timeout);
    bool Read(GenerateReply* reply) { return stream_->Read(reply); }
    void Cancel() { context_.TryCancel(); }
    grpc::Status Finish() { return stream_->Finish(); }
    grpc::Status ReadAll(Answers* answers);

   private:
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReaderWriter<GenerateRequest, GenerateReply>> stream_;
  };
  Call Stream(const GenerateHeader& header, const std::vector<Prompt>& prompts,
              std::chrono::milliseconds timeout = std::chrono::minutes(2)) {
    return Call(*stub_, header, prompts, timeout);
  }
  grpc::Status Generate(const GenerateHeader& header, const std::vector<Prompt>& prompts, Answers* answers) {
    return Stream(header, prompts).ReadAll(answers);
  }
  // What version `version` answers to the usual prompts.
  std::map<std::pair<uint64_t, int32_t>, std::vector<int32_t>> Ids(uint64_t version);

  CallIdentity NextIdentity();
  grpc::Status Begin(const WeightManifest& manifest, uint64_t* bytes = nullptr);
  grpc::Status Commit(uint64_t version);
  grpc::Status Commit(const CommitUpdateRequest& request, CommitUpdateReply* reply = nullptr);
  grpc::Status Abort();
  grpc::Status Pause(PauseRequest::Mode mode, uint64_t* in_flight = nullptr);
  grpc::Status Resume();
  grpc::Status Sleep(uint64_t* bytes_released, int32_t level = 0);
  grpc::Status WakeUp();
  ServiceInfo Info();
  // Of all ranks, now.
  int64_t Bytes(const std::string& category);
  double Metric(const std::string& name) { return Info().metrics().at("rollout/" + name); }
  // Until the metric has that value.
  void Await(const std::string& name, double value);

 private:
  // What the ranks' health services say.
  std::set<bool> Health();

  std::mutex broken_mutex_;
  absl::Status broken_;  // guarded by it
  std::vector<std::unique_ptr<RankServer>> servers_;
  std::unique_ptr<Rollout::Stub> stub_;
  uint64_t sequence_ = 0;
};

GenerateHeader HeaderFor(size_t prompts, int32_t samples, float temperature);
// For answers that take long: `tokens` each, whatever the model says.
GenerateHeader LongHeader(size_t prompts, int32_t samples, int32_t tokens);
// Five, of different lengths.
std::vector<Prompt> SomePrompts();
// The model's own weights, negated where `negate`; as a publisher has them.
std::unique_ptr<FakePublisher> Publish(uint64_t version, bool negate);

// A test for each way in which ranks share the work, with few places, so that calls of hundreds of sequences are under
// way for long.
class EachGroupTest : public testing::TestWithParam<Group> {
 protected:
  TestService service_{GetParam(), [](RolloutConfig* rollout) { rollout->set_max_num_seqs(4); }};
};
inline const Group kGroups[] = {{.ranks = 1},
                                {.ranks = 2},
                                {.ranks = 2, .zero_stage = 3},
                                {.ranks = 2, .tensor_parallel_size = 2},
                                {.ranks = 4, .tensor_parallel_size = 2}};
std::string NameOf(const testing::TestParamInfo<Group>& info);

}  // namespace quartet

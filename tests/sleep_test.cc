// What a rollout that sleeps gives back to the operating system.

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/model/initialize.h"
#include "gtest/gtest.h"
#include "proto/rollout.grpc.pb.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

// Private memory of all processes of the harness, bytes.
int64_t ResidentBytes(const ProcessHarness& harness) {
  int64_t kilobytes = 0;
  for (const pid_t pid : harness.Alive()) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
    std::string word;
    while (file >> word) {
      int64_t value = 0;
      if (word == "RssAnon:" && file >> value) kilobytes += value;
    }
  }
  return kilobytes * 1024;
}

TEST(Sleep, GivesTheMemoryOfItsWeightsBack) {
  ProcessHarness harness;
  // Two blocks of 51 MB: what is freed of such pieces goes back at once.
  ModelConfig config = TinyModelConfig();
  config.hidden_size = 1024;
  config.intermediate_size = 2816;
  config.num_attention_heads = config.num_key_value_heads = 16;
  config.head_dim = 64;
  const std::string model = harness.Path("model");
  const absl::Status written = WriteRandomModel(config, HeadKind::kVocabulary, 7, Dtype::kF32, model);
  ASSERT_TRUE(written.ok()) << written;
  const ProcessHarness::Service rollout = StartRollout(harness, model);
  ASSERT_FALSE(rollout.address.empty()) << harness.Output(rollout.pid);
  const auto stub = Rollout::NewStub(grpc::CreateChannel(rollout.address, grpc::InsecureChannelCredentials()));

  const int64_t before = ResidentBytes(harness);
  SleepReply slept;
  {
    grpc::ClientContext context;
    SleepRequest request;
    request.mutable_identity()->set_run_id("test");
    request.mutable_identity()->set_sequence(1);
    request.set_level(2);
    const grpc::Status status = stub->Sleep(&context, request, &slept);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_GT(slept.bytes_released(), 100u << 20);
  const int64_t asleep = ResidentBytes(harness);
  EXPECT_LT(asleep, before - (90 << 20));
  {
    grpc::ClientContext context;
    WakeUpRequest request;
    request.mutable_identity()->set_run_id("test");
    request.mutable_identity()->set_sequence(2);
    WakeUpReply reply;
    const grpc::Status status = stub->WakeUp(&context, request, &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_GT(ResidentBytes(harness), asleep + (90 << 20));
}

}  // namespace
}  // namespace quartet

// Ranks of one service on hosts whose clocks differ.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/files/files.h"
#include "core/model/initialize.h"
#include "core/safetensors/reader.h"
#include "core/service/ranks/addresses/port_reservation.h"
#include "gtest/gtest.h"
#include "proto/rollout.grpc.pb.h"
#include "rollout/testing/fake_publisher.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

// As torchrun would start rank `rank` of two on a host whose clock is `skew` seconds ahead.
std::map<std::string, std::string> Host(int rank, int skew) {
  return {{"RANK", absl::StrCat(rank)},
          {"WORLD_SIZE", "2"},
          {"LOCAL_RANK", "0"},
          {"LOCAL_WORLD_SIZE", "1"},
          {"LD_PRELOAD", ExecutableFolder() + "/libskewed_clock.so"},
          {"SKEW_SECONDS", absl::StrCat(skew)}};
}

std::unique_ptr<FakePublisher> Publish(const std::string& model, uint64_t version) {
  const auto reader = CheckpointReader::Open(model);
  EXPECT_TRUE(reader.ok()) << reader.status();
  std::vector<ParameterSpec> tensors;
  std::vector<std::vector<char>> values;
  for (const auto& [name, info] : (*reader)->tensors()) {
    tensors.push_back({.name = name, .shape = info.shape});
    std::vector<float> floats(info.numel());
    EXPECT_TRUE((*reader)->ReadRange(name, 0, info.numel(), floats.data()).ok());
    std::vector<char>& bytes = values.emplace_back(floats.size() * sizeof(float));
    std::memcpy(bytes.data(), floats.data(), bytes.size());
  }
  return std::make_unique<FakePublisher>(version, Dtype::kF32, tensors, values, 2);
}

TEST(ClockSkew, WeightsArriveWhateverTheRanksTakeTheTimeFor) {
  ProcessHarness harness;
  const std::string model = harness.Path("model");
  const absl::Status written = WriteRandomModel(TinyModelConfig(), HeadKind::kVocabulary, 7, Dtype::kF32, model);
  ASSERT_TRUE(written.ok()) << written;
  const HostPort leader_address = PortReservation::Make({.host = "127.0.0.1", .port = 0}).value().address();
  const std::string address_file = harness.Path("address");
  const std::vector<std::string> arguments = {
      "--set=rollout.pretrain=" + model,      "--set=rollout.dtype=fp32",
      "--set=rollout.max_model_len=256",      "--set=rollout.kv_cache_bytes=4194304",
      "--set=run_dir=" + harness.Path("run"), "--listen=" + leader_address.ToString(),
      "--address_file=" + address_file};
  constexpr int kHour = 3600;
  const pid_t leader = harness.Start("rollout/rollout", arguments, Host(0, 0));
  const pid_t other = harness.Start("rollout/rollout", arguments, Host(1, 5 * kHour));
  const absl::Time patience = absl::Now() + absl::Minutes(1);
  while (!ReadFile(address_file).ok() && absl::Now() < patience) absl::SleepFor(absl::Milliseconds(20));
  const absl::StatusOr<std::string> address = ReadFile(address_file);
  ASSERT_TRUE(address.ok()) << harness.Output(leader) << harness.Output(other);

  const auto publisher = Publish(model, 1);
  const auto stub = Rollout::NewStub(grpc::CreateChannel(*address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  BeginUpdateRequest request;
  request.mutable_identity()->set_run_id("test");
  request.mutable_identity()->set_sequence(1);
  *request.mutable_manifest() = publisher->manifest();
  BeginUpdateReply reply;
  const grpc::Status status = stub->BeginUpdate(&context, request, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace quartet

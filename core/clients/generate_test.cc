#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/testing/scratch_folder.h"
#include "core/clients/service_clients.h"
#include "core/clients/testing/fake_services.h"

namespace quartet {
namespace {

TEST(RolloutClient, GivesUpOneCallAndNoOther) {
  const ScratchFolder scratch;
  FakeServices services;
  Cancellation cancellation;
  const auto clients = ConnectServices(services.MakeConfig(scratch.path(), 1), &cancellation);
  ASSERT_TRUE(clients.ok()) << clients.status();
  GenerateHeader header;
  header.mutable_sampling()->set_n_samples(1);
  header.mutable_sampling()->set_max_new_tokens(8);
  Prompt prompt;
  prompt.add_ids('a');

  std::promise<void> begun, end;
  std::atomic<bool> first = true;
  services.SetHook([&, waits = end.get_future().share()](const std::string& call) {
    if (call == "rollout.Generate" && first.exchange(false)) {
      begun.set_value();
      waits.wait();
    }
    return grpc::Status::OK;
  });
  std::stop_source give_up;
  auto answer =
      std::async(std::launch::async, [&] { return clients->rollout->Generate(header, {prompt}, give_up.get_token()); });
  begun.get_future().wait();
  give_up.request_stop();
  EXPECT_EQ(answer.get().status().code(), absl::StatusCode::kCancelled);
  end.set_value();

  EXPECT_EQ(clients->rollout->Generate(header, {prompt}, give_up.get_token()).status().code(),
            absl::StatusCode::kCancelled);
  const auto other = clients->rollout->Generate(header, {prompt}, std::stop_source().get_token());
  EXPECT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(cancellation.status().ok());
}

}  // namespace
}  // namespace quartet

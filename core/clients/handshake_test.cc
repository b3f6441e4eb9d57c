#include "core/clients/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "core/base/testing/scratch_folder.h"
#include "core/clients/service_clients.h"
#include "core/clients/testing/fake_services.h"
#include "core/service/reported_fields.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocabulary = 128;  // of the fake services

// One path may be another folder on the trainer's host, or have been one when the trainer was started.
TEST(Handshake, RefusesATrainerThatHasReadAnotherConfigOfTheModel) {
  const ScratchFolder scratch;
  scratch.Write("config.json", "{\"rope_theta\": 10000}");
  FakeServices services;
  const RunConfig config = services.MakeConfig(scratch.path(), 1);
  const std::string field = "actor.pretrain/config.json", was = ReportedFields(config, "policy_trainer").at(field);
  const auto report = [&](std::string name, std::string value) {
    services.spoil_info = [name = std::move(name), value = std::move(value)](ServiceInfo* info) {
      if (info->service() == "policy_trainer") (*info->mutable_configuration())[name] = value;
    };
  };
  report(field, was);
  services.SetConfiguration(config);
  Cancellation cancellation;
  Services clients = ConnectServices(config, &cancellation).value();
  const auto shake = [&] { return ShakeHands(clients, config, kVocabulary, [](const auto&, const auto&) {}).status(); };
  EXPECT_TRUE(shake().ok()) << shake();
  report(field, "of the hash 0123456789abcdef");
  EXPECT_EQ(shake().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(shake().message()),
              HasSubstr(field + " is of the hash 0123456789abcdef there and " + was + " here"));
  services.spoil_info = nullptr;
  EXPECT_TRUE(shake().ok()) << "a build that does not tell it";
  report("actor.pretrain/other.json", was);
  EXPECT_TRUE(shake().ok()) << "a file that is not seen here";
}

}  // namespace
}  // namespace quartet

#include "core/service/reported_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/base/testing/scratch_folder.h"
#include "core/config/run_config.h"
#include "core/config/services.h"

namespace quartet {
namespace {

using ::testing::StartsWith;

TEST(ReportedFields, HaveTheHashesOfWhatTheFoldersOfModelsSayOfThem) {
  const ScratchFolder scratch;
  scratch.Write("model/config.json", "{}");
  scratch.Write("adapters/adapter_config.json", "{}");
  const RunConfig config =
      LoadRunConfig("",
                    {"actor.pretrain=" + scratch.path() + "/model",
                     "reward.source.0.model=" + scratch.path() + "/adapters", "reference.pretrain=/nowhere"},
                    "")
          .value();
  auto actor = ReportedFields(config, "policy_trainer");
  const std::string of_actor = actor.at("actor.pretrain/config.json");
  EXPECT_THAT(of_actor, StartsWith("of the hash "));
  EXPECT_EQ(actor.erase("actor.pretrain/config.json"), 1);
  EXPECT_EQ(actor, ServiceFields(config, "policy_trainer"));
  auto scorer = ReportedFields(config, "scorer");
  EXPECT_EQ(scorer.at("reward.source.0.model/adapter_config.json"), of_actor) << "the same text";
  EXPECT_FALSE(scorer.contains("reference.pretrain/config.json"));

  scratch.Write("model/config.json", "{ }");
  EXPECT_NE(ReportedFields(config, "policy_trainer").at("actor.pretrain/config.json"), of_actor);
  for (const auto& [field, value] : ReportedFields(config, "scorer")) {
    EXPECT_EQ(IsFileHash(field), !ServiceFields(config, "scorer").contains(field)) << field;
  }
}

}  // namespace
}  // namespace quartet

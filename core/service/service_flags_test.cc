#include "core/service/service_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace quartet {
namespace {

using ::testing::StartsWith;

TEST(LoadServiceConfig, WantsTrainersToBeToldWhereTheRunIs) {
  ServiceFlags flags;
  flags.overrides = {"actor.pretrain=models/a", "critic.pretrain=models/a", "data.prompt_max_len=8",
                     "rollout.generate_max_len=8"};
  for (const char* trainer : {"policy_trainer", "critic_trainer"}) {
    EXPECT_THAT(std::string(LoadServiceConfig(flags, trainer).status().message()), StartsWith("run_dir is not set; "))
        << trainer;
  }
  EXPECT_TRUE(LoadServiceConfig(flags, "rollout").ok()) << "it writes nothing";
  flags.overrides.push_back("run_dir=runs/a");
  for (const char* trainer : {"policy_trainer", "critic_trainer"}) {
    const auto config = LoadServiceConfig(flags, trainer);
    EXPECT_TRUE(config.ok()) << config.status();
  }
}

}  // namespace
}  // namespace quartet

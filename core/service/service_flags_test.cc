#include "core/service/service_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace quartet {
namespace {

using ::testing::HasSubstr;
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

TEST(LoadServiceConfig, CountsRanksOfTheCommandLine) {
  ServiceFlags flags;
  flags.ranks = 2;
  flags.overrides = {"run_dir=runs/a", "actor.pretrain=models/a", "data.prompt_max_len=8", "rollout.generate_max_len=8",
                     "services.policy_trainer.collective_backend=gloo"};
  const auto config = LoadServiceConfig(flags, "policy_trainer");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->services().policy_trainer().ranks(), 2);
  flags.ranks = 1;
  EXPECT_THAT(std::string(LoadServiceConfig(flags, "policy_trainer").status().message()),
              HasSubstr("ranks is 1, and one rank has no collectives"));
}

}  // namespace
}  // namespace quartet

#include "core/service/service_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

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

TEST(ReadRankEnvironment, RefusesPlacesThatCannotBe) {
  const std::vector<std::string> names = {"RANK",         "WORLD_SIZE",   "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                          "SLURM_PROCID", "SLURM_NTASKS", "GROUP_RANK"};
  const auto read = [&](const std::map<std::string, std::string>& environment) {
    for (const std::string& name : names) unsetenv(name.c_str());
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    const auto place = ReadRankEnvironment();
    for (const std::string& name : names) unsetenv(name.c_str());
    return place;
  };
  const auto error = [&](const std::map<std::string, std::string>& environment) {
    return std::string(read(environment).status().message());
  };
  EXPECT_THAT(error({{"RANK", "0"}}), HasSubstr("RANK is set, but WORLD_SIZE is not; set both or neither"));
  EXPECT_THAT(error({{"WORLD_SIZE", "2"}}), HasSubstr("WORLD_SIZE is set, but RANK is not; set both or neither"));
  EXPECT_THAT(error({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK=2 and WORLD_SIZE=2"));
  EXPECT_THAT(error({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "5"}, {"LOCAL_WORLD_SIZE", "2"}}),
              HasSubstr("LOCAL_RANK=5 and LOCAL_WORLD_SIZE=2"));
  EXPECT_EQ(read({{"SLURM_NTASKS", "2"}})->has_value(), false) << "a job's script is none of its tasks";
  EXPECT_EQ(read({{"RANK", "1"}, {"WORLD_SIZE", "2"}})->value().rank, 1);
}

}  // namespace
}  // namespace quartet

#include "core/training/engine/reward_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace quartet {
namespace {

using ::testing::HasSubstr;

RewardSource With(const std::string& config, bool normalize = false) {
  static int number = 0;
  const std::string folder = testing::TempDir() + "/model" + std::to_string(number++);
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << config;
  RewardSource source;
  source.set_model(folder);
  source.set_normalize_reward(normalize);
  return source;
}

TEST(RewardScale, IsTheMeanAndStdOfTheModelsConfig) {
  const std::string config = R"({"mean": 1.5, "std": 2})";
  EXPECT_EQ(ReadRewardScale(With(config)).value().mean, 0);
  const RewardScale scale = ReadRewardScale(With(config, true)).value();
  EXPECT_EQ(scale.mean, 1.5f);
  EXPECT_EQ(scale.std, 2);
  EXPECT_THAT(std::string(ReadRewardScale(With(R"({"mean": 1})", true)).status().message()),
              HasSubstr("no number \"std\""));
  EXPECT_THAT(std::string(ReadRewardScale(With(R"({"mean": 1, "std": 0})", true)).status().message()),
              HasSubstr("std must be above 0"));
}

}  // namespace
}  // namespace quartet

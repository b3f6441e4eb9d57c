#include "core/training/engine/reward_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace quartet {
namespace {

using ::testing::AllOf;
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

// OpenRLHF writes config.json beside adapters; that of their model, which may be a reward model too, is of other
// values.
TEST(RewardScale, OfAdaptersIsInTheirOwnFolder) {
  const RewardSource base = With(R"({"mean": 1.5, "std": 2})", true);
  RewardSource adapters = With(R"({"mean": 0.5, "std": 4})", true);
  std::ofstream(adapters.model() + "/adapter_config.json")
      << R"({"base_model_name_or_path": ")" << base.model() << "\"}";
  EXPECT_EQ(ReadRewardScale(adapters).value().mean, 0.5f);
  EXPECT_EQ(ReadRewardScale(adapters).value().std, 4);
  std::filesystem::remove(adapters.model() + "/config.json");
  const absl::Status status = ReadRewardScale(adapters).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(adapters.model() + "/config.json"), HasSubstr("\"mean\", which normalize_reward needs")));
}

}  // namespace
}  // namespace quartet

#include "core/model/scalar_head_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "core/safetensors/writer.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What is said of weights that are these tensors beside this config.json.
std::string ErrorOf(const std::vector<std::string>& tensors, const std::string& config_json,
                    const std::string& scalar_head = std::string(kScalarHead)) {
  const std::string path = testing::TempDir() + "/scalar_head_check.safetensors";
  std::filesystem::remove(path);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const std::string& name : tensors) entries.push_back({name, Dtype::kF32, {1}});
  const auto writer = SafetensorsWriter::Create(path, entries);
  EXPECT_TRUE(writer.ok()) << writer.status();
  const float zero = 0;
  for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
    EXPECT_TRUE((*writer)->Write(i, 0, &zero, sizeof(zero)).ok());
  }
  EXPECT_TRUE((*writer)->Close().ok());
  const auto reader = CheckpointReader::OpenFile(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  ModelConfig config;
  config.scalar_head = scalar_head;
  config.json = config_json;
  return std::string(CheckScalarHead(config, "models/m", **reader).message());
}

TEST(CheckScalarHead, RefusesABiasBesideTheHeadThatIsRead) {
  EXPECT_EQ(ErrorOf({"score.weight", "value_head.bias"}, "{}"), "");
  EXPECT_EQ(ErrorOf({"score.weight", "score.bias"}, "{}"),
            "models/m: the head has a bias, score.bias; a scalar head has none (bias=False)");
  EXPECT_THAT(ErrorOf({"value_head.weight", "value_head.bias"}, "{}", "value_head"),
              HasSubstr("the head has a bias, value_head.bias"));
}

TEST(CheckScalarHead, RefusesATrainedHeadOfANameThatTheClassDoesNotFollow) {
  const std::string named = R"({"value_head_prefix": "v"})";
  EXPECT_THAT(ErrorOf({"v.weight"}, named),
              AllOf(StartsWith("models/m/config.json: value_head_prefix is \"v\", and the weights have v.weight and no "
                               "score.weight"),
                    HasSubstr("architectures is [\"RewardModel\"] or [\"CriticModel\"]")));
  EXPECT_EQ(ErrorOf({"v.weight"}, named, "v"), "") << "followed";
  EXPECT_EQ(ErrorOf({"v.weight", "score.weight"}, named), "");
  EXPECT_EQ(ErrorOf({"model.norm.weight"}, named), "") << "nothing is left out";
  EXPECT_EQ(ErrorOf({"v.weight"}, R"({"value_head_prefix": null})"), "");
  // Where an option asks for another head it is that which is missing.
  EXPECT_EQ(ErrorOf({"v.weight"}, named, "w"), "");
  EXPECT_EQ(ErrorOf({"v.weight"}, R"({"value_head_prefix": "v", "architectures": ["RewardModel"]})"), "");
}

}  // namespace
}  // namespace quartet

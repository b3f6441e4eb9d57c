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

constexpr int kHidden = 4;

// What is said of weights that are these tensors beside this config.json.
std::string ErrorOf(const std::vector<std::string>& tensors, const std::string& config_json,
                    const std::string& scalar_head = std::string(kScalarHead),
                    const std::vector<int64_t>& shape = {1}) {
  const std::string path = testing::TempDir() + "/scalar_head_check.safetensors";
  std::filesystem::remove(path);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const std::string& name : tensors) entries.push_back({name, Dtype::kF32, shape});
  const auto writer = SafetensorsWriter::Create(path, entries);
  EXPECT_TRUE(writer.ok()) << writer.status();
  const float zeros[kHidden] = {};
  for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
    const size_t bytes = shape.back() * sizeof(float);
    EXPECT_TRUE((*writer)->Write(i, 0, zeros, bytes).ok());
  }
  EXPECT_TRUE((*writer)->Close().ok());
  const auto reader = CheckpointReader::OpenFile(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  ModelConfig config;
  config.scalar_head = scalar_head;
  config.json = config_json;
  config.hidden_size = kHidden;
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

TEST(CheckScalarHead, RefusesToReplaceATensorThatMayBeATrainedHead) {
  const std::string json = R"({"architectures": ["LlamaForCausalLM"]})";
  const std::string score(kScalarHead);
  EXPECT_EQ(ErrorOf({"v_head.summary.weight"}, json, score, {1, kHidden}),
            "models/m/config.json: the weights have v_head.summary.weight of shape [1, 4], which may be a trained "
            "scalar head, and no score.weight, the head that is looked for; to read it, set architectures to "
            "[\"CriticModel\"] and value_head_prefix to \"v_head.summary\" there; to begin with a new head, set "
            "value_head_prefix to \"score\" there");
  EXPECT_THAT(ErrorOf({"my.own.weight"}, json, score, {1, kHidden}), HasSubstr("value_head_prefix to \"my.own\""));
  for (const std::vector<std::string>& tensors :
       {std::vector<std::string>{"v_head.0.weight"}, {"value_head.weight", "value_head.bias"}}) {
    EXPECT_THAT(ErrorOf(tensors, json, score, {kHidden}),
                AllOf(HasSubstr(tensors[0] + " of shape [4]"), HasSubstr("it cannot be read"),
                      HasSubstr("set value_head_prefix to \"score\"")));
  }
  EXPECT_THAT(ErrorOf({"value_head.weight"}, R"({"value_head_prefix": "other"})", score, {1, kHidden}),
              HasSubstr("the weights have value_head.weight"));
  EXPECT_EQ(ErrorOf({"value_head.weight"}, R"({"value_head_prefix": "score"})", score, {1, kHidden}), "");
  EXPECT_EQ(ErrorOf({"value_head.weight", "score.weight"}, json, score, {1, kHidden}), "");
  EXPECT_EQ(ErrorOf({"value_head.weight"}, json, "value_head", {1, kHidden}), "") << "an option names it";
  EXPECT_EQ(ErrorOf({"model.norm.weight", "lm_head.weight"}, json, score, {kHidden}), "");
}

}  // namespace
}  // namespace quartet

#include "core/model/parameter_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/model/testing/golden_models.h"
#include "core/safetensors/reader.h"

namespace quartet {
namespace {

class LayoutOf : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, LayoutOf, testing::ValuesIn(kGoldenModels), [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Critic, LayoutOf, testing::Values("llama_critic"),
                         [](const auto& info) { return info.param; });

TEST_P(LayoutOf, HasTheTensorsThatTransformersWrote) {
  const std::string folder = "core/model/testdata/" + GetParam();
  const auto config = ReadModelConfig(folder);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto reader = CheckpointReader::Open(folder);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::map<std::string, std::vector<int64_t>> theirs, ours;
  for (const auto& [name, info] : (*reader)->tensors()) theirs[name] = info.shape;
  const ParameterLayout layout = MakeParameterLayout(*config, config->head);
  int64_t numel = 0;
  for (const ParameterGroup& group : layout.groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      EXPECT_TRUE(ours.emplace(parameter.name, parameter.shape).second) << parameter.name << " twice";
      numel += parameter.numel();
      EXPECT_EQ(parameter.weight_decay, parameter.shape.size() == 2) << parameter.name;
    }
  }
  EXPECT_EQ(ours, theirs);
  EXPECT_EQ(layout.numel(), numel);
}

ModelConfig Tied() {
  auto config = ReadModelConfig("core/model/testdata/llama_tied_llama3_rope");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

TEST(ParameterLayout, GivesTiedEmbeddingsNoHeadGroup) {
  const ParameterLayout layout = MakeParameterLayout(Tied(), HeadKind::kVocabulary);
  EXPECT_EQ(layout.head_group, 0);
  EXPECT_EQ(layout.groups.size(), 3);  // embedding and two blocks
  EXPECT_EQ(layout.groups[0].parameters[1].name, "model.norm.weight");
}

TEST(ParameterLayout, GivesAScalarHeadItsOwnGroupEvenWhereEmbeddingsAreTied) {
  const ParameterLayout layout = MakeParameterLayout(Tied(), HeadKind::kScalar);
  EXPECT_EQ(layout.head_group, 3);
  ASSERT_EQ(layout.groups.size(), 4);
  EXPECT_EQ(layout.groups[0].parameters.size(), 1);
  EXPECT_EQ(layout.groups[3].parameters[1].name, "score.weight");
  EXPECT_EQ(layout.groups[3].parameters[1].shape, (std::vector<int64_t>{1, 32}));
}

TEST(ParameterLayout, GivesEachBlockAGroup) {
  const ParameterLayout layout = MakeParameterLayout(Tied(), HeadKind::kVocabulary);
  EXPECT_EQ(layout.groups[layout.block_group(1)].name, "block 1");
  EXPECT_EQ(layout.groups[layout.block_group(1)].parameters[0].name, "model.layers.1.input_layernorm.weight");
}

}  // namespace
}  // namespace quartet

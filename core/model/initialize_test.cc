#include "core/model/initialize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <sstream>

#include "core/model/parameter_layout.h"

namespace quartet {
namespace {

ModelConfig Config() {
  ModelConfig config;
  config.model_type = "qwen2";
  config.vocab_size = 1100;
  config.hidden_size = 256;
  config.intermediate_size = 96;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 64;
  config.max_position_embeddings = 128;
  config.block.qkv_bias = true;
  config.initializer_range = 0.05;
  return config;
}

std::string Folder(const std::string& name) {
  return testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name() + "/" + name;
}

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

std::vector<float> Values(const CheckpointReader& reader, const std::string& name) {
  const TensorInfo& info = reader.tensors().at(name);
  std::vector<float> values(info.numel());
  if (info.dtype == Dtype::kF32) {
    EXPECT_TRUE(reader.ReadRange(name, 0, values.size(), values.data()).ok());
  } else {
    std::vector<uint16_t> narrow(values.size());
    EXPECT_TRUE(reader.ReadRange(name, 0, values.size(), narrow.data()).ok());
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::bit_cast<float>(uint32_t{narrow[i]} << 16);
  }
  return values;
}

TEST(WriteRandomModel, WritesAFolderThatReadsBack) {
  const std::string folder = Folder("model");
  ASSERT_TRUE(WriteRandomModel(Config(), HeadKind::kScalar, 1, Dtype::kF32, folder).ok());
  const auto config = ReadModelConfig(folder);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head, HeadKind::kScalar);
  EXPECT_TRUE(config->block.qkv_bias);
  const auto reader = CheckpointReader::Open(folder);
  ASSERT_TRUE(reader.ok()) << reader.status();
  size_t parameters = 0;
  for (const ParameterGroup& group : MakeParameterLayout(*config, config->head).groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      ASSERT_TRUE((*reader)->tensors().contains(parameter.name)) << parameter.name;
      EXPECT_EQ((*reader)->tensors().at(parameter.name).shape, parameter.shape);
      ++parameters;
    }
  }
  EXPECT_EQ((*reader)->tensors().size(), parameters);
}

TEST(WriteRandomModel, DrawsMatricesFromTheNormalDistribution) {
  const std::string folder = Folder("model");
  ASSERT_TRUE(WriteRandomModel(Config(), HeadKind::kVocabulary, 1, Dtype::kF32, folder).ok());
  const auto reader = CheckpointReader::Open(folder);
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const float value : Values(**reader, "model.norm.weight")) EXPECT_EQ(value, 1);
  for (const float value : Values(**reader, "model.layers.0.self_attn.q_proj.bias")) EXPECT_EQ(value, 0);
  // 281,600 draws: more than one piece. Bounds are five standard errors wide.
  const std::vector<float> values = Values(**reader, "model.embed_tokens.weight");
  const double n = values.size(), sigma = 0.05;
  double sum = 0, squares = 0, beyond_two_sigma = 0, neighbours = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    squares += double{values[i]} * values[i];
    beyond_two_sigma += std::abs(values[i]) > 2 * sigma;
    if (i > 0) neighbours += double{values[i]} * values[i - 1];
  }
  EXPECT_NEAR(sum / n, 0, 5 * sigma / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n) / sigma, 1, 5 / std::sqrt(2 * n));
  EXPECT_NEAR(beyond_two_sigma / n, std::erfc(std::sqrt(2.0)), 5 * std::sqrt(0.0455 / n));
  EXPECT_NEAR(neighbours / n / (sigma * sigma), 0, 5 / std::sqrt(n));
}

TEST(WriteRandomModel, DependsOnTheSeedAlone) {
  ASSERT_TRUE(WriteRandomModel(Config(), HeadKind::kVocabulary, 1, Dtype::kF32, Folder("a")).ok());
  ASSERT_TRUE(WriteRandomModel(Config(), HeadKind::kVocabulary, 1, Dtype::kF32, Folder("b")).ok());
  ASSERT_TRUE(WriteRandomModel(Config(), HeadKind::kVocabulary, 2, Dtype::kF32, Folder("c")).ok());
  const std::string a = Bytes(Folder("a") + "/model.safetensors");
  EXPECT_EQ(a, Bytes(Folder("b") + "/model.safetensors"));
  EXPECT_NE(a, Bytes(Folder("c") + "/model.safetensors"));
  const auto reader = CheckpointReader::Open(Folder("a"));
  EXPECT_NE(Values(**reader, "model.layers.0.mlp.up_proj.weight"),
            Values(**reader, "model.layers.1.mlp.up_proj.weight"));
}

TEST(WriteRandomModel, RoundsToTheNearestBfloat16) {
  ASSERT_TRUE(WriteRandomModel(Config(), HeadKind::kVocabulary, 1, Dtype::kF32, Folder("fp32")).ok());
  ASSERT_TRUE(WriteRandomModel(Config(), HeadKind::kVocabulary, 1, Dtype::kBF16, Folder("bf16")).ok());
  const auto wide = CheckpointReader::Open(Folder("fp32")), narrow = CheckpointReader::Open(Folder("bf16"));
  const std::vector<float> exact = Values(**wide, "lm_head.weight"), rounded = Values(**narrow, "lm_head.weight");
  ASSERT_EQ(exact.size(), rounded.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    // bf16 has 8 significant bits: half a unit in the last place.
    ASSERT_LE(std::abs(exact[i] - rounded[i]), std::ldexp(1.0, std::ilogb(exact[i]) - 8)) << exact[i];
  }
}

TEST(WriteRandomModel, RefusesOtherTypes) {
  EXPECT_EQ(WriteRandomModel(Config(), HeadKind::kVocabulary, 1, Dtype::kF16, Folder("model")).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quartet

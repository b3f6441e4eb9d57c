#include "core/model/tensor_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace quartet {
namespace {

ModelConfig ConfigOf(const std::string& model) {
  auto config = ReadModelConfig("core/model/testdata/" + model);
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

class SharesOf : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, SharesOf,
                         testing::Values("llama", "llama_tied_llama3_rope", "llama_biases", "qwen2", "qwen3", "mistral",
                                         "granite"),
                         [](const auto& info) { return info.param; });

TEST(TensorParallel, RefusesNormsOverAllHeads) {
  EXPECT_EQ(
      CheckTensorParallel(ConfigOf("olmo2"), 2).message(),
      "config.json: model_type is \"olmo2\", whose norms of queries and keys are over all heads, which 2 ranks do "
      "not have; allowed numbers of ranks: 1");
  EXPECT_TRUE(CheckTensorParallel(ConfigOf("olmo2"), 1).ok());
}

TEST_P(SharesOf, TogetherAreTheModel) {
  ModelConfig config = ConfigOf(GetParam());
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.vocab_size = 133;
  const ParameterLayout whole = MakeParameterLayout(config, HeadKind::kVocabulary);
  for (const int size : {1, 2, 4, 8}) {
    ASSERT_TRUE(CheckTensorParallel(config, size).ok());
    for (size_t g = 0; g < whole.groups.size(); ++g) {
      for (size_t p = 0; p < whole.groups[g].parameters.size(); ++p) {
        const ParameterSpec& parameter = whole.groups[g].parameters[p];
        std::vector<int> holders(parameter.numel());
        bool sliced = false;
        for (int rank = 0; rank < size; ++rank) {
          const ParameterSpec share =
              ShareOfLayout(config, HeadKind::kVocabulary, {rank, size}).groups[g].parameters[p];
          EXPECT_EQ(share.name, parameter.name);
          EXPECT_EQ(share.stored_shape(), parameter.shape) << parameter.name;
          EXPECT_EQ(share.weight_decay, parameter.weight_decay);
          const StridedRange range = share.stored_range();
          EXPECT_EQ(range.numel(), share.numel());
          for (int64_t row = 0; row < range.rows; ++row) {
            for (int64_t i = 0; i < range.count; ++i) ++holders.at(range.begin + row * range.stride + i);
          }
          sliced = share.slice.has_value();
        }
        const bool is_norm = parameter.name.find("norm") != std::string::npos;
        const bool is_bias_of_sum =
            parameter.name.ends_with("o_proj.bias") || parameter.name.ends_with("down_proj.bias");
        EXPECT_EQ(sliced, size > 1 && !is_norm && !is_bias_of_sum) << parameter.name;
        // Of 4 key/value heads each is on two of 8 ranks.
        const bool is_key_value =
            parameter.name.find("k_proj") != std::string::npos || parameter.name.find("v_proj") != std::string::npos;
        const int copies = !sliced ? size : is_key_value ? std::max(1, size / 4) : 1;
        for (const int held : holders) ASSERT_EQ(held, copies) << parameter.name;
      }
    }
  }
}

std::map<std::string, ParameterSpec> ByName(const ParameterLayout& layout) {
  std::map<std::string, ParameterSpec> parameters;
  for (const ParameterGroup& group : layout.groups) {
    for (const ParameterSpec& parameter : group.parameters) parameters[parameter.name] = parameter;
  }
  return parameters;
}

TEST(TensorParallel, SlicesInputsByRowsAndOutputsByColumns) {
  // 4 heads, 2 key/value heads of 16, 32 hidden, 48 feed-forward.
  const auto share = ByName(ShareOfLayout(ConfigOf("llama_biases"), HeadKind::kVocabulary, {1, 2}));
  const auto expect = [&](const std::string& name, std::vector<int64_t> shape, const StridedRange& range) {
    const ParameterSpec& parameter = share.at("model.layers.1." + name);
    EXPECT_EQ(parameter.shape, shape) << name;
    EXPECT_EQ(parameter.stored_range(), range) << name;
  };
  expect("self_attn.q_proj.weight", {32, 32}, {.begin = 32 * 32, .count = 32 * 32});
  expect("self_attn.q_proj.bias", {32}, {.begin = 32, .count = 32});
  expect("self_attn.v_proj.weight", {16, 32}, {.begin = 16 * 32, .count = 16 * 32});
  expect("self_attn.o_proj.weight", {32, 32}, {.begin = 32, .count = 32, .rows = 32, .stride = 64});
  expect("self_attn.o_proj.bias", {32}, {.begin = 0, .count = 32});
  expect("mlp.up_proj.weight", {24, 32}, {.begin = 24 * 32, .count = 24 * 32});
  expect("mlp.down_proj.weight", {32, 24}, {.begin = 24, .count = 24, .rows = 32, .stride = 48});
}

// 4 heads, 2 key/value heads of 16: ranks 0 and 1 have the first of these.
TEST(TensorParallel, GivesSeveralRanksTheKeyValueHeadThatTheirQueriesRead) {
  for (const int rank : {0, 1, 2, 3}) {
    const auto share = ByName(ShareOfLayout(ConfigOf("llama_biases"), HeadKind::kVocabulary, {rank, 4}));
    const ParameterSpec &q = share.at("model.layers.0.self_attn.q_proj.weight"),
                        &k = share.at("model.layers.0.self_attn.k_proj.weight"),
                        &bias = share.at("model.layers.0.self_attn.v_proj.bias");
    EXPECT_EQ(q.slice->begin, 16 * rank);
    EXPECT_EQ(q.slice->copies, 1);
    EXPECT_EQ(k.shape, (std::vector<int64_t>{16, 32}));
    EXPECT_EQ(k.slice->begin, 16 * (rank / 2));
    EXPECT_EQ(k.slice->copies, 2);
    EXPECT_EQ(bias.slice->begin, 16 * (rank / 2));
  }
  EXPECT_EQ(ShareOfConfig(ConfigOf("llama_biases"), 4).num_key_value_heads, 1);
}

TEST(TensorParallel, DealsTheVocabularyInUnitsOfSixteenRows) {
  const ModelConfig config = ConfigOf("llama");  // 101 words: 7 units
  const std::vector<int64_t> counts = {16, 32, 32, 21};
  int64_t next = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const VocabularyRows rows = VocabularyRowsOf(config, {rank, 4});
    EXPECT_EQ(rows.begin, next);
    EXPECT_EQ(rows.count, counts[rank]);
    next += rows.count;
  }
  EXPECT_EQ(next, 101);
  const auto share = ByName(ShareOfLayout(config, HeadKind::kVocabulary, {1, 2}));
  EXPECT_EQ(share.at("lm_head.weight").shape, (std::vector<int64_t>{53, 32}));
  EXPECT_EQ(share.at("model.embed_tokens.weight").slice->begin, 48);
}

TEST(TensorParallel, KeepsTheVocabularyOfAShareWhole) {
  const ModelConfig share = ShareOfConfig(ConfigOf("llama"), 2);
  EXPECT_EQ(share.num_attention_heads, 2);
  EXPECT_EQ(share.num_key_value_heads, 1);
  EXPECT_EQ(share.intermediate_size, 24);
  EXPECT_EQ(share.vocab_size, 101);
}

TEST(TensorParallel, RefusesWhatCannotBeDividedByName) {
  const auto message = [](const auto& change, int size) {
    ModelConfig config = ConfigOf("llama");
    change(config);
    return std::string(CheckTensorParallel(config, size).message());
  };
  const auto nothing = [](ModelConfig&) {};
  EXPECT_EQ(message(nothing, 2), "");
  EXPECT_EQ(
      message(nothing, 3),
      "config.json: num_attention_heads is 4, which cannot be divided over 3 ranks; allowed numbers of ranks: 1, 2, 4");
  EXPECT_EQ(message(nothing, 4), "");
  EXPECT_EQ(message([](ModelConfig& config) { config.num_attention_heads = config.num_key_value_heads = 6; }, 4),
            "config.json: num_attention_heads is 6, which cannot be divided over 4 ranks; allowed numbers of ranks: 1, "
            "2, 3, 6");
  const auto of_three = [](ModelConfig& config) {
    config.num_attention_heads = 12;
    config.num_key_value_heads = 3;
  };
  EXPECT_EQ(
      message(of_three, 4),
      "config.json: num_key_value_heads is 3, which can neither be divided over 4 ranks nor be on equally many of "
      "them each; allowed numbers of ranks: 1, 3, 6");
  EXPECT_EQ(message([](ModelConfig& config) { config.intermediate_size = 49; }, 2),
            "config.json: intermediate_size is 49, which cannot be divided over 2 ranks; allowed numbers of ranks: 1");
  EXPECT_EQ(message([](ModelConfig& config) { config.vocab_size = 16; }, 2),
            "config.json: vocab_size is 16, too little for 2 ranks; allowed numbers of ranks: 1");
}

}  // namespace
}  // namespace quartet

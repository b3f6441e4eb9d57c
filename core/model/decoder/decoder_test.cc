// Against what transformers computes from the same folders; tools/golden/make_model_golden.py.
#include "core/model/decoder/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/model/decoder/packed_attention.h"
#include "core/model/decoder/vocabulary_head.h"
#include "core/model/lora.h"
#include "core/model/testing/golden_models.h"
#include "core/model/testing/whole_model.h"
#include "core/safetensors/reader.h"

namespace quartet {
namespace {

std::string Folder(const std::string& name) { return "core/model/testdata/" + name; }

// golden.safetensors beside the model, read as a folder of its own.
class Golden {
 public:
  explicit Golden(const std::string& name) {
    auto reader = CheckpointReader::Open(Folder(name) + "/golden");
    if (!reader.ok()) {
      ADD_FAILURE() << reader.status();
      return;
    }
    reader_ = std::move(*reader);
  }
  at::Tensor operator[](const std::string& tensor) const {
    auto read = ReadTensor(*reader_, tensor);
    EXPECT_TRUE(read.ok()) << read.status();
    return *read;
  }
  std::vector<std::string> Gradients() const {
    std::vector<std::string> names;
    for (const auto& [name, info] : reader_->tensors()) {
      if (name.starts_with("grad.")) names.push_back(name);
    }
    return names;
  }

 private:
  std::unique_ptr<CheckpointReader> reader_;
};

WholeModel Load(const std::string& name, at::ScalarType type = at::kFloat) {
  auto model = WholeModel::Load(Folder(name), type);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// Largest difference, as a share of the largest magnitude.
double RelativeDifference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

// Two sequences of 13 tokens each, laid end to end.
const std::vector<int64_t> kStarts = {0, 13, 26};

class Architectures : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Architectures, testing::ValuesIn(kGoldenModels),
                         [](const auto& info) { return info.param; });

TEST_P(Architectures, HaveTheLogitsOfTransformers) {
  const Golden golden(GetParam());
  const WholeModel model = Load(GetParam());
  const at::Tensor hidden = model.Forward(golden["ids"].reshape(-1), kStarts);
  const at::Tensor logits = VocabularyLogits(hidden, model.head_weight(), model.config().vocab_size).view({2, 13, -1});
  EXPECT_LT(RelativeDifference(logits, golden["logits"]), 1e-5);
}

// Each position's hidden state and the token that follows it in its sequence.
TokenLogProbs NextTokenLogProbs(const WholeModel& model, const at::Tensor& ids, double temperature) {
  const at::Tensor hidden = model.Forward(ids.reshape(-1), kStarts).view({2, 13, -1});
  return ChunkedLogProbs(hidden.slice(1, 0, 12).reshape({24, -1}), model.head_weight(), ids.slice(1, 1).reshape(-1),
                         temperature, {.wanted = true}, /*chunk_bytes=*/7 * 101 * 4);
}

TEST_P(Architectures, HaveTheLogProbabilitiesOfTransformers) {
  const Golden golden(GetParam());
  const WholeModel model = Load(GetParam());
  const TokenLogProbs at_1 = NextTokenLogProbs(model, golden["ids"], 1);
  EXPECT_LT(RelativeDifference(at_1.log_prob_T, golden["log_probs"].reshape(-1)), 1e-5);
  EXPECT_LT(RelativeDifference(at_1.entropy_T, golden["entropy"].reshape(-1)), 1e-5);
  const TokenLogProbs at_07 = NextTokenLogProbs(model, golden["ids"], 0.7);
  EXPECT_LT(RelativeDifference(at_07.log_prob_T, golden["log_probs_07"].reshape(-1)), 1e-5);
  EXPECT_LT(RelativeDifference(at_07.entropy_T, golden["entropy"].reshape(-1)), 1e-5);
}

TEST_P(Architectures, ComeCloseInBfloat16) {
  const Golden golden(GetParam());
  const WholeModel model = Load(GetParam(), at::kBFloat16);
  const at::Tensor hidden = model.Forward(golden["ids"].reshape(-1), kStarts);
  EXPECT_EQ(hidden.scalar_type(), at::kBFloat16);
  const at::Tensor logits = VocabularyLogits(hidden, model.head_weight(), model.config().vocab_size).view({2, 13, -1});
  EXPECT_LT(RelativeDifference(logits, golden["logits"]), 0.05);  // bf16 keeps 8 bits
}

class ArchitecturesWithGradients : public Architectures {};
INSTANTIATE_TEST_SUITE_P(All, ArchitecturesWithGradients,
                         testing::Values("llama", "llama_tied_llama3_rope", "qwen3", "granite", "olmo2"),
                         [](const auto& info) { return info.param; });

TEST_P(ArchitecturesWithGradients, HaveTheGradientsOfTransformers) {
  const Golden golden(GetParam());
  const std::vector<std::string> names = golden.Gradients();
  WholeModel model = Load(GetParam());
  model.RequireGradients();
  (-NextTokenLogProbs(model, golden["ids"], 1).log_prob_T.mean()).backward();
  size_t compared = 0;
  for (size_t group = 0; group < model.parameters().size(); ++group) {
    for (size_t i = 0; i < model.parameters()[group].size(); ++i) {
      const std::string name = model.layout().groups[group].parameters[i].name;
      const at::Tensor& gradient = model.parameters()[group][i].grad();
      ASSERT_TRUE(gradient.defined()) << name;
      EXPECT_LT(RelativeDifference(gradient, golden["grad." + name]), 2e-5) << name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, names.size());
}

// As an engine's buffers hold a block: one parameter behind the other.
TEST_P(Architectures, GiveTheSameWhereProductsAreJoined) {
  const WholeModel model = Load(GetParam());
  const ParameterGroup& group = model.layout().groups[1];
  std::vector<at::Tensor> flat, views;
  for (const at::Tensor& parameter : model.parameters()[1]) flat.push_back(parameter.flatten());
  const at::Tensor buffer = at::cat(flat);
  for (int64_t begin = 0; const at::Tensor& parameter : model.parameters()[1]) {
    views.push_back(buffer.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
    begin += parameter.numel();
  }
  BlockWeights separate(group, views), joined(group, views);
  joined.JoinProducts();
  EXPECT_NE(joined.qkv().defined(), separate[BlockTensor::kQBias].defined());
  EXPECT_NE(joined.gate_up().defined(), separate[BlockTensor::kGateBias].defined());
  const PackedCausalAttention attention({.cu_seqlens = kStarts, .shared = {}});
  const RotaryTable rotary = MakeRotaryTable(model.config(), at::arange(13).repeat({2}));
  const at::Tensor hidden = at::randn({26, model.config().hidden_size});
  EXPECT_LT(RelativeDifference(DecoderBlock(model.config(), joined, rotary, attention, hidden),
                               DecoderBlock(model.config(), separate, rotary, attention, hidden)),
            1e-6);

  ModelConfig adapted = model.config();
  adapted.lora = AdapterConfig{.r = 3, .targets = {"q_proj", "v_proj", "up_proj", "down_proj"}};
  const ParameterGroup adapters = MakeLoraLayout(adapted, model.layout()).groups[0];
  std::vector<at::Tensor> factors;
  for (const ParameterSpec& factor : adapters.parameters) factors.push_back(at::randn(factor.shape));
  const at::Tensor without = DecoderBlock(model.config(), separate, rotary, attention, hidden);
  separate.Adapt(adapters, factors, 0.5);
  joined.Adapt(adapters, factors, 0.5);
  const at::Tensor with = DecoderBlock(model.config(), separate, rotary, attention, hidden);
  EXPECT_GT(RelativeDifference(with, without), 0.01);
  EXPECT_LT(RelativeDifference(DecoderBlock(model.config(), joined, rotary, attention, hidden), with), 1e-5);

  BlockWeights apart(group, model.parameters()[1]);
  apart.JoinProducts();
  EXPECT_FALSE(apart.qkv().defined() || apart.gate_up().defined());
}

TEST(ScalarHead, HasTheValuesOfTransformers) {
  const Golden golden("llama_critic");
  const WholeModel model = Load("llama_critic");
  const at::Tensor hidden = model.Forward(golden["ids"].reshape(-1), kStarts);
  EXPECT_LT(RelativeDifference(at::linear(hidden, model.head_weight()).view({2, 13}), golden["values"]), 1e-5);
}

// Sequences of several lengths, equal neighbours (which are batched) and an empty one among them.
TEST(PackedCausalAttention, KeepsSequencesApart) {
  const Golden golden("llama");
  const WholeModel model = Load("llama");
  const at::Tensor ids = golden["ids"].reshape(-1);
  const at::Tensor packed = model.Forward(ids, {0, 5, 10, 10, 11, 26});
  std::vector<at::Tensor> alone;
  for (const auto& [begin, end] : {std::pair{0, 5}, {5, 10}, {10, 11}, {11, 26}}) {
    alone.push_back(model.Forward(ids.slice(0, begin, end), {0, end - begin}));
  }
  EXPECT_LT(RelativeDifference(packed, at::cat(alone, 0)), 1e-5);
}

TEST(PackedCausalAttention, DoesNotSeeTheFuture) {
  const WholeModel model = Load("qwen3");
  const at::Tensor ids = Golden("qwen3")["ids"][0];
  at::Tensor changed = ids.clone();
  changed[9] = 50;
  const at::Tensor before = model.Forward(ids, {0, 13}), after = model.Forward(changed, {0, 13});
  EXPECT_TRUE(at::equal(before.slice(0, 0, 9), after.slice(0, 0, 9)));
  EXPECT_FALSE(at::allclose(before.slice(0, 9), after.slice(0, 9)));
}

}  // namespace
}  // namespace quartet

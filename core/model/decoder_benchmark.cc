// Forward passes over SmolLM2-135M's shapes: tokens per second of one block, of the vocabulary head, of all of it.
//
//   bazel build -c opt //core/model:decoder_benchmark && OMP_NUM_THREADS=2 bazel-bin/core/model/decoder_benchmark
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "core/model/decoder/decoder.h"
#include "core/model/decoder/packed_attention.h"
#include "core/model/decoder/vocabulary_head.h"
#include "core/model/parameter_layout.h"
#include "core/model/testing/smollm2.h"

namespace quartet {
namespace {

at::ScalarType Type(const benchmark::State& state) { return state.range(0) == 16 ? at::kBFloat16 : at::kFloat; }

BlockWeights RandomBlock(const ModelConfig& config, at::ScalarType type, bool trained = false) {
  const ParameterGroup group = MakeParameterLayout(config, HeadKind::kVocabulary).groups[1];
  std::vector<at::Tensor> tensors;
  for (const ParameterSpec& parameter : group.parameters) {
    tensors.push_back((at::randn(parameter.shape) * 0.02).to(type).set_requires_grad(trained));
  }
  return BlockWeights(group, tensors);
}

constexpr int64_t kLength = 256, kSequences = 8, kTokens = kLength * kSequences;

std::vector<int64_t> Starts() {
  std::vector<int64_t> cu_seqlens = {0};
  while (cu_seqlens.back() < kTokens) cu_seqlens.push_back(cu_seqlens.back() + kLength);
  return cu_seqlens;
}

RotaryTable Rotary(const ModelConfig& config) {
  return MakeRotaryTable(config, at::arange(kTokens, at::kLong).remainder(kLength));
}

void Finish(benchmark::State& state) { state.SetItemsProcessed(state.iterations() * kTokens); }

void BM_Block(benchmark::State& state) {
  const c10::NoGradGuard no_grad;
  const ModelConfig config = SmolLm2();
  const BlockWeights weights = RandomBlock(config, Type(state));
  const RotaryTable rotary = Rotary(config);
  const PackedCausalAttention attention({.cu_seqlens = Starts(), .shared = {}});
  const at::Tensor hidden = at::randn({kTokens, config.hidden_size}).to(Type(state));
  for (auto _ : state) benchmark::DoNotOptimize(DecoderBlock(config, weights, rotary, attention, hidden));
  Finish(state);
}
BENCHMARK(BM_Block)->Arg(16)->Arg(32)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_BlockForwardBackward(benchmark::State& state) {
  const ModelConfig config = SmolLm2();
  const BlockWeights weights = RandomBlock(config, Type(state), /*trained=*/true);
  const RotaryTable rotary = Rotary(config);
  const PackedCausalAttention attention({.cu_seqlens = Starts(), .shared = {}});
  const at::Tensor hidden = at::randn({kTokens, config.hidden_size}).to(Type(state)).set_requires_grad(true);
  for (auto _ : state) DecoderBlock(config, weights, rotary, attention, hidden).sum().backward();
  Finish(state);
}
BENCHMARK(BM_BlockForwardBackward)->Arg(16)->Arg(32)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_Head(benchmark::State& state) {
  const c10::NoGradGuard no_grad;
  const ModelConfig config = SmolLm2();
  const at::Tensor hidden = at::randn({kTokens, config.hidden_size}).to(Type(state));
  const at::Tensor head = (at::randn({config.vocab_size, config.hidden_size}) * 0.02).to(Type(state));
  const at::Tensor targets = at::randint(config.vocab_size, {kTokens}, at::kLong);
  for (auto _ : state) benchmark::DoNotOptimize(ChunkedLogProbs(hidden, head, targets, 1, {}));
  Finish(state);
}
BENCHMARK(BM_Head)->Arg(16)->Arg(32)->UseRealTime()->Unit(benchmark::kMillisecond);

// As in an update: log-probabilities and entropy, then the gradients of hidden states and head.
void BM_HeadForwardBackward(benchmark::State& state) {
  const ModelConfig config = SmolLm2();
  const at::Tensor hidden = at::randn({kTokens, config.hidden_size}).to(Type(state)).set_requires_grad(true);
  const at::Tensor head =
      (at::randn({config.vocab_size, config.hidden_size}) * 0.02).to(Type(state)).set_requires_grad(true);
  const at::Tensor targets = at::randint(config.vocab_size, {kTokens}, at::kLong);
  for (auto _ : state) {
    ChunkedLogProbs(hidden, head, targets, 1, {.wanted = true}).log_prob_T.sum().backward();
    hidden.mutable_grad() = at::Tensor();
    head.mutable_grad() = at::Tensor();
  }
  Finish(state);
}
BENCHMARK(BM_HeadForwardBackward)->Arg(16)->Arg(32)->UseRealTime()->Unit(benchmark::kMillisecond);

// Thirty blocks and the head.
void BM_WholeModel(benchmark::State& state) {
  const c10::NoGradGuard no_grad;
  const ModelConfig config = SmolLm2();
  std::vector<BlockWeights> blocks;
  for (int i = 0; i < config.num_hidden_layers; ++i) blocks.push_back(RandomBlock(config, Type(state)));
  const at::Tensor embedding = (at::randn({config.vocab_size, config.hidden_size}) * 0.02).to(Type(state));
  const at::Tensor ids = at::randint(config.vocab_size, {kTokens}, at::kLong);
  const PackedCausalAttention attention({.cu_seqlens = Starts(), .shared = {}});
  for (auto _ : state) {
    const RotaryTable rotary = Rotary(config);
    at::Tensor hidden = Stem(config, embedding, ids);
    for (const BlockWeights& block : blocks) hidden = DecoderBlock(config, block, rotary, attention, hidden);
    benchmark::DoNotOptimize(ChunkedLogProbs(hidden, embedding, ids, 1, {}));
  }
  Finish(state);
}
BENCHMARK(BM_WholeModel)->Arg(16)->Arg(32)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace quartet

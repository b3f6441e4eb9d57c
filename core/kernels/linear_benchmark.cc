// Products with weight matrices of SmolLM2-135M's shapes, in bf16 and fp32, beside LibTorch's: operations a second, and
// bytes a second of the weight. As in generation a weight comes from memory: the calls go round over copies of it.
//
//   bazel build -c opt //core/kernels:linear_benchmark && OMP_NUM_THREADS=2 bazel-bin/core/kernels/linear_benchmark
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "core/kernels/linear.h"

namespace quartet {
namespace {

// Arguments: rows, inputs, outputs.
template <typename Multiply>
void Run(
    benchmark::State& state, at::ScalarType type, const Multiply& multiply,
    const std::function<at::Tensor(const at::Tensor&)>& prepare = [](const at::Tensor& weight) { return weight; }) {
  const c10::NoGradGuard no_grad;
  const int64_t T = state.range(0), K = state.range(1), N = state.range(2);
  const at::Tensor input = at::randn({T, K}).to(type);
  const at::Tensor weight = prepare(at::randn({N, K}).to(type));
  std::vector<at::Tensor> copies = {weight};
  const int64_t bytes = N * K * static_cast<int64_t>(weight.element_size());
  while (static_cast<int64_t>(copies.size()) < std::max<int64_t>(1, (int64_t{256} << 20) / bytes)) {
    copies.push_back(weight.clone());
  }
  size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(multiply(input, copies[next]));
    next = (next + 1) % copies.size();
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * calls * static_cast<double>(T * K * N), benchmark::Counter::kIsRate);
  state.counters["GiB/s"] =
      benchmark::Counter(0x1p-30 * calls * static_cast<double>(bytes), benchmark::Counter::kIsRate);
}

void Shapes(benchmark::internal::Benchmark* benchmark) {
  for (const auto& [inputs, outputs] : {std::pair{576, 576}, {576, 1536}, {1536, 576}, {576, 49152}}) {
    for (const int rows : {1, 4, 8, 32, 128, 1024}) benchmark->Args({rows, inputs, outputs});
  }
  benchmark->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void BM_WideProduct(benchmark::State& state) { Run(state, at::kBFloat16, &WideProduct); }
BENCHMARK(BM_WideProduct)->Apply(Shapes);

void BM_Linear(benchmark::State& state) {
  Run(state, at::kBFloat16,
      [](const at::Tensor& input, const at::Tensor& weight) { return Linear(input, weight, at::Tensor()); });
}
BENCHMARK(BM_Linear)->Apply(Shapes);

// As the rollout keeps its weights.
void BM_PackedLinear(benchmark::State& state) {
  Run(
      state, at::kBFloat16,
      [](const at::Tensor& input, const at::Tensor& weight) { return Linear(input, weight, at::Tensor()); },
      [](const at::Tensor& weight) { return PackInPlace(weight); });
}
BENCHMARK(BM_PackedLinear)->Apply(Shapes);

void BM_LibTorchLinear(benchmark::State& state) {
  Run(state, at::kBFloat16,
      [](const at::Tensor& input, const at::Tensor& weight) { return at::linear(input, weight); });
}
BENCHMARK(BM_LibTorchLinear)->Apply(Shapes);

// What a wide product of bf16 takes where only LibTorch can make it.
void BM_LibTorchWidened(benchmark::State& state) {
  Run(state, at::kBFloat16, [](const at::Tensor& input, const at::Tensor& weight) {
    return at::mm(input.to(at::kFloat), weight.to(at::kFloat).t());
  });
}
BENCHMARK(BM_LibTorchWidened)->Apply(Shapes);

void BM_Fp32Linear(benchmark::State& state) {
  Run(state, at::kFloat,
      [](const at::Tensor& input, const at::Tensor& weight) { return Linear(input, weight, at::Tensor()); });
}
BENCHMARK(BM_Fp32Linear)->Apply(Shapes);

void BM_Fp32PackedLinear(benchmark::State& state) {
  Run(
      state, at::kFloat,
      [](const at::Tensor& input, const at::Tensor& weight) { return Linear(input, weight, at::Tensor()); },
      [](const at::Tensor& weight) { return CanPack(weight) ? PackInPlace(weight) : weight; });
}
BENCHMARK(BM_Fp32PackedLinear)->Apply(Shapes);

void BM_LibTorchFp32Linear(benchmark::State& state) {
  Run(state, at::kFloat, [](const at::Tensor& input, const at::Tensor& weight) { return at::linear(input, weight); });
}
BENCHMARK(BM_LibTorchFp32Linear)->Apply(Shapes);

void BM_Fp32WeightGradient(benchmark::State& state) {
  Run(state, at::kFloat,
      [&, gradient = at::randn({state.range(0), state.range(2)})](const at::Tensor& input, const at::Tensor&) {
        return GradientProduct(gradient.t(), input);
      });
}
BENCHMARK(BM_Fp32WeightGradient)->Apply(Shapes);

void BM_LibTorchFp32WeightGradient(benchmark::State& state) {
  Run(state, at::kFloat,
      [&, gradient = at::randn({state.range(0), state.range(2)})](const at::Tensor& input, const at::Tensor&) {
        return at::mm(gradient.t(), input);
      });
}
BENCHMARK(BM_LibTorchFp32WeightGradient)->Apply(Shapes);

// The gradients of a layer's input and weight.
void BM_LibTorchInputGradient(benchmark::State& state) {
  Run(state, at::kBFloat16,
      [&, gradient = at::randn({state.range(0), state.range(2)}).to(at::kBFloat16)](
          const at::Tensor&, const at::Tensor& weight) { return at::mm(gradient, weight); });
}
BENCHMARK(BM_LibTorchInputGradient)->Apply(Shapes);

void BM_LibTorchWeightGradient(benchmark::State& state) {
  Run(state, at::kBFloat16,
      [&, gradient = at::randn({state.range(0), state.range(2)}).to(at::kBFloat16)](
          const at::Tensor& input, const at::Tensor&) { return at::mm(gradient.t(), input); });
}
BENCHMARK(BM_LibTorchWeightGradient)->Apply(Shapes);

}  // namespace
}  // namespace quartet

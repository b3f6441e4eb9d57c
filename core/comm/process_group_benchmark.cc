// Bytes a second of all-gathers and reduce-scatters of 1, 16 and 64 MiB, bf16 and fp32, between 2 ranks of 1 thread
// each, over Gloo and over shared memory, and of copying what one rank receives. A rate is that of the whole buffer.
//
//   bazel build -c opt //core/comm:process_group_benchmark && bazel-bin/core/comm/process_group_benchmark
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <string>

#include "core/comm/testing/rank_threads.h"

namespace quartet {
namespace {

constexpr int kRanks = 2;

// `collective` runs on all ranks; its time is taken on one, whose turn ends only with the others'. The arguments are
// the MiB of the whole buffer and the bits of an element.
template <class Collective>
void Measure(benchmark::State& state, const std::string& backend, Collective collective) {
  const int64_t bytes = state.range(0) << 20;
  const at::ScalarType type = state.range(1) == 16 ? at::kBFloat16 : at::kFloat;
  const int64_t elements = bytes / static_cast<int64_t>(c10::elementSize(type));
  const int times = static_cast<int>((int64_t{512} << 20) / bytes);
  for (auto _ : state) {
    (void)_;
    RunRanks(
        kRanks,
        [&](ProcessGroup& group) {
          const at::Tensor whole = at::ones({elements}, type), part = at::zeros({elements / kRanks}, type);
          for (int i = 0; i < 5; ++i) collective(group, whole, part);
          group.Barrier();
          const auto start = std::chrono::steady_clock::now();
          for (int i = 0; i < times; ++i) collective(group, whole, part);
          group.Barrier();
          const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
          if (group.rank() == 0) state.SetIterationTime(spent.count() / times);
        },
        absl::Seconds(60), backend);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

void BM_AllGather(benchmark::State& state, const std::string& backend) {
  Measure(state, backend, [](ProcessGroup& group, const at::Tensor& whole, const at::Tensor&) {
    group.AllGatherInPlace(whole)->Wait();
  });
}

void BM_ReduceScatter(benchmark::State& state, const std::string& backend) {
  Measure(state, backend, [](ProcessGroup& group, const at::Tensor& whole, const at::Tensor& part) {
    group.ReduceScatterSum(part, whole)->Wait();
  });
}

// Both ranks copy what they would receive, at the same time: what a gather cannot be faster than.
void BM_Copy(benchmark::State& state) {
  Measure(state, "auto", [](ProcessGroup&, const at::Tensor& whole, const at::Tensor& part) {
    std::memcpy(part.data_ptr(), whole.const_data_ptr(), part.nbytes());
    benchmark::ClobberMemory();
  });
}

void Arguments(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"MiB", "bits"})
      ->ArgsProduct({{1, 16, 64}, {16, 32}})
      ->UseManualTime()
      ->Iterations(1)
      ->Repetitions(5)
      ->ReportAggregatesOnly()
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_AllGather, gloo, "gloo")->Apply(Arguments);
BENCHMARK_CAPTURE(BM_AllGather, shm, "shm")->Apply(Arguments);
BENCHMARK_CAPTURE(BM_ReduceScatter, gloo, "gloo")->Apply(Arguments);
BENCHMARK_CAPTURE(BM_ReduceScatter, shm, "shm")->Apply(Arguments);
BENCHMARK(BM_Copy)->Apply(Arguments);

}  // namespace
}  // namespace quartet

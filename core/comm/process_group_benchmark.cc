// Bytes a second of an all-gather and a reduce-scatter of 14 MB (a decoder block of SmolLM2-135M in fp32) between 2
// ranks of 1 thread each, over Gloo and over shared memory, and of copying what one rank receives. A rate is that of
// the whole buffer.
//
//   bazel build -c opt //core/comm:process_group_benchmark && bazel-bin/core/comm/process_group_benchmark
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <string>

#include "core/comm/rank_threads.h"

namespace quartet {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kElements = 14'000'000 / 4 / 128 * 128;

// `collective` runs on all ranks; its time is taken on one, whose turn ends only with the others'.
template <class Collective>
void Measure(benchmark::State& state, const std::string& backend, Collective collective) {
  for (auto _ : state) {
    (void)_;
    constexpr int kTimes = 50;
    RunRanks(
        kRanks,
        [&](ProcessGroup& group) {
          const at::Tensor whole = at::ones({kElements}), part = at::zeros({kElements / kRanks});
          for (int i = 0; i < 5; ++i) collective(group, whole, part);
          group.Barrier();
          const auto start = std::chrono::steady_clock::now();
          for (int i = 0; i < kTimes; ++i) collective(group, whole, part);
          group.Barrier();
          const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
          if (group.rank() == 0) state.SetIterationTime(spent.count() / kTimes);
        },
        absl::Seconds(60), backend);
  }
  state.SetBytesProcessed(state.iterations() * kElements * 4);
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

BENCHMARK_CAPTURE(BM_AllGather, gloo, "gloo")
    ->UseManualTime()
    ->Iterations(3)
    ->Repetitions(3)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_AllGather, shm, "shm")
    ->UseManualTime()
    ->Iterations(3)
    ->Repetitions(3)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ReduceScatter, gloo, "gloo")
    ->UseManualTime()
    ->Iterations(3)
    ->Repetitions(3)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ReduceScatter, shm, "shm")
    ->UseManualTime()
    ->Iterations(3)
    ->Repetitions(3)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Copy)->UseManualTime()->Iterations(3)->Repetitions(3)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace quartet

#include "core/kernels/testing/machine_rates.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/hardware/huge_pages.h"
#include "core/hardware/parallel.h"
#include "core/hardware/simd.h"
#include "core/kernels/linear.h"

namespace quartet {
namespace {

// The fewest seconds of several runs.
template <typename Run>
double BestSeconds(const Run& run) {
  double best = 1e9;
  for (int i = 0; i < 8; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// Eight sums side by side, so that only memory is waited for.
QUARTET_SIMD_CLONES float SumOf(const float* values, int64_t count) {
  constexpr int64_t kSums = 8;
  simd::F16 sums[kSums] = {};
  for (int64_t i = 0; i + kSums * simd::kLanes <= count; i += kSums * simd::kLanes) {
    for (int64_t s = 0; s < kSums; ++s) sums[s] += simd::Load(values + i + s * simd::kLanes);
  }
  float sum = 0;
  for (const simd::F16& part : sums) sum += simd::Sum(part);
  return sum;
}

double ReadRate() {
  constexpr int64_t kBytes = int64_t{512} << 20, kCount = kBytes / static_cast<int64_t>(sizeof(float));
  const std::unique_ptr<float, decltype(&std::free)> memory(
      static_cast<float*>(std::aligned_alloc(int64_t{2} << 20, kBytes)), &std::free);
  AskForHugePages(memory.get(), kBytes);
  std::memset(memory.get(), 0, kBytes);
  std::atomic<float> seen = 0;  // so that no sum is left out
  return static_cast<double>(kBytes) / BestSeconds([&] {
           at::parallel_for(0, kCount, kCount / at::get_num_threads(), [&](int64_t begin, int64_t end) {
             seen.store(SumOf(memory.get() + begin, end - begin), std::memory_order_relaxed);
           });
         });
}

double MatrixRate(at::ScalarType type) {
  const c10::NoGradGuard no_grad;
  constexpr int64_t kRows = 1024, kSize = 2048;
  const at::Tensor input = at::randn({kRows, kSize}).to(type), weight = at::randn({kSize, kSize}).to(type);
  const double ours = BestSeconds([&] { Linear(input, weight, at::Tensor()); });
  const double theirs = BestSeconds([&] { at::linear(input, weight); });
  return 2.0 * kRows * kSize * kSize / std::min(ours, theirs);
}

MachineRates RatesOfGpu(at::Device device) {
  const c10::NoGradGuard no_grad;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const auto seconds = [&](const auto& run) {
    return BestSeconds([&] {
      run();
      guard.synchronizeDevice(guard.getDevice().index());
    });
  };
  constexpr int64_t kSize = 8192, kBytes = int64_t{4} << 30;
  const auto flops = [&](at::ScalarType type) {
    const at::Tensor a = at::randn({kSize, kSize}, device).to(type), b = at::randn({kSize, kSize}, device).to(type);
    return 2.0 * kSize * kSize * kSize / seconds([&] { at::linear(a, b); });
  };
  const at::Tensor much = at::randn({kBytes / static_cast<int64_t>(sizeof(float))}, device);
  return {.bf16_flops = flops(at::kBFloat16),
          .fp32_flops = flops(at::kFloat),
          .bytes = static_cast<double>(kBytes) / seconds([&] { at::sum(much); })};
}

}  // namespace

MachineRates MeasureMachineRates(at::Device device) {
  if (!device.is_cpu()) return RatesOfGpu(device);
  return {.bf16_flops = MatrixRate(at::kBFloat16), .fp32_flops = MatrixRate(at::kFloat), .bytes = ReadRate()};
}

}  // namespace quartet

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/kernels/cuda/log_softmax_rows.h"

namespace quartet {
namespace {

constexpr int kThreads = 512;
// Logits that a thread reads before it looks for a new maximum.
constexpr int kAtOnce = 4;

__device__ float Infinity() { return __int_as_float(0x7f800000); }

// RowTargets::Begin.
__device__ int64_t Begin(const RowTargets& targets, int64_t row) {
  return targets.starts == nullptr ? targets.first + row : targets.starts[targets.first + row];
}

// With x = (logit - largest) * scale: the sums of e^x and of x e^x.
struct Sums {
  float largest, exponentials, weighted;
};

// The same, as if `largest` had been the largest.
__device__ Sums Under(const Sums& sums, float largest, float scale) {
  if (sums.exponentials == 0) return {largest, 0, 0};
  const float shift = (sums.largest - largest) * scale, factor = expf(shift);
  return {largest, sums.exponentials * factor, (sums.weighted + sums.exponentials * shift) * factor};
}

__device__ Sums Together(const Sums& a, const Sums& b, float scale) {
  const float largest = fmaxf(a.largest, b.largest);
  const Sums x = Under(a, largest, scale), y = Under(b, largest, scale);
  return {largest, x.exponentials + y.exponentials, x.weighted + y.weighted};
}

// Of a row, in all threads of a block.
__device__ Sums SumRow(const float* logits, int64_t vocabulary, float scale) {
  Sums mine = {-Infinity(), 0, 0};
  for (int64_t i = threadIdx.x; i < vocabulary; i += kAtOnce * kThreads) {
    float values[kAtOnce], largest = mine.largest;
    for (int n = 0; n < kAtOnce; ++n) {
      values[n] = i + n * kThreads < vocabulary ? logits[i + n * kThreads] : -Infinity();
      largest = fmaxf(largest, values[n]);
    }
    if (largest > mine.largest) mine = Under(mine, largest, scale);
    for (int n = 0; n < kAtOnce; ++n) {
      if (values[n] == -Infinity()) continue;  // weighs nothing; a NaN goes on
      const float x = (values[n] - mine.largest) * scale, exponential = expf(x);
      mine.exponentials += exponential;
      mine.weighted += x * exponential;
    }
  }
  __shared__ Sums all[kThreads];
  all[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) all[threadIdx.x] = Together(all[threadIdx.x], all[threadIdx.x + half], scale);
    __syncthreads();
  }
  const Sums sums = all[0];
  __syncthreads();
  return sums;
}

__global__ void __launch_bounds__(kThreads)
    LogSoftmaxKernel(const float* all_logits, RowTargets targets, float temperature, int64_t vocabulary,
                     float* log_probs, float* log_sums, EntropyResult entropy) {
  const int64_t row = blockIdx.x;
  const float* logits = all_logits + row * vocabulary;
  const float scale = 1 / temperature;
  const Sums sums = SumRow(logits, vocabulary, scale);
  const bool other = entropy.entropies != nullptr && entropy.temperature != temperature;
  const float entropy_scale = 1 / entropy.temperature;
  const Sums own = other ? SumRow(logits, vocabulary, entropy_scale) : sums;
  if (threadIdx.x != 0) return;
  const float log_sum = logf(sums.exponentials);
  for (int64_t i = Begin(targets, row); i < Begin(targets, row + 1); ++i) {
    const int64_t target = targets.ids[i];
    log_probs[i] = target >= 0 && target < vocabulary ? (logits[target] - sums.largest) * scale - log_sum
                                                      : __int_as_float(0x7fc00000);
  }
  log_sums[row] = sums.largest * scale + log_sum;
  if (entropy.entropies == nullptr) return;
  const float own_log_sum = logf(own.exponentials);
  entropy.entropies[row] = own_log_sum - own.weighted / own.exponentials;
  entropy.log_sums[row] = own.largest * entropy_scale + own_log_sum;
}

__device__ void Put(float x, float* to) { *to = x; }
__device__ void Put(float x, __nv_bfloat16* to) { *to = __float2bfloat16_rn(x); }

// May write over the logits: a place is read and written by the same thread.
template <typename Element>
__global__ void __launch_bounds__(kThreads)
    LogSoftmaxGradientKernel(const float* logits, RowTargets targets, float temperature, const float* log_sums,
                             const float* gradients, EntropyGradient entropy, int64_t vocabulary, Element* out) {
  const int64_t row = blockIdx.x, begin = Begin(targets, row), end = Begin(targets, row + 1);
  const int64_t only = end - begin == 1 ? targets.ids[begin] : -1;
  float sum = 0;
  for (int64_t t = begin; t < end; ++t) sum += gradients[t];
  logits += row * vocabulary;
  out += row * vocabulary;
  const float scale = 1 / temperature, log_sum = log_sums[row];
  const bool with_entropy = entropy.entropies != nullptr;
  const float own_scale = 1 / entropy.temperature;
  const float own_log_sum = with_entropy ? entropy.log_sums[row] : 0;
  const float own_entropy = with_entropy ? entropy.entropies[row] : 0;
  const float own_gradient = with_entropy ? entropy.gradients[row] * own_scale : 0;
  for (int64_t i = threadIdx.x; i < vocabulary; i += kThreads) {
    const float logit = logits[i];
    float own = i == only ? sum : 0;
    if (only < 0) {
      for (int64_t t = begin; t < end; ++t) own += targets.ids[t] == i ? gradients[t] : 0;
    }
    const float softmax = expf(logit * scale - log_sum);
    float found = ((1 - softmax) * own - softmax * (sum - own)) * scale;
    if (with_entropy) {
      const float log_probability = logit * own_scale - own_log_sum, probability = expf(log_probability);
      if (probability > 0) found -= probability * (log_probability + own_entropy) * own_gradient;
    }
    Put(found, out + i);
  }
}

const char* Last() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* LaunchLogSoftmaxRows(const float* logits, const RowTargets& targets, float temperature, int64_t rows,
                                 int64_t vocabulary, float* log_probs, float* log_sums, const EntropyResult* entropy,
                                 void* stream) {
  if (rows == 0) return nullptr;
  LogSoftmaxKernel<<<static_cast<unsigned>(rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      logits, targets, temperature, vocabulary, log_probs, log_sums, entropy == nullptr ? EntropyResult{} : *entropy);
  return Last();
}

const char* LaunchLogSoftmaxRowsGradient(const float* logits, const RowTargets& targets, float temperature,
                                         const float* log_sums, const float* gradients, const EntropyGradient* entropy,
                                         int64_t rows, int64_t vocabulary, RowElement element, void* logits_gradients,
                                         void* stream) {
  if (rows == 0) return nullptr;
  const auto launch = [&](auto* out) {
    LogSoftmaxGradientKernel<<<static_cast<unsigned>(rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        logits, targets, temperature, log_sums, gradients, entropy == nullptr ? EntropyGradient{} : *entropy,
        vocabulary, out);
  };
  if (element == RowElement::kFloat) {
    launch(static_cast<float*>(logits_gradients));
  } else {
    launch(static_cast<__nv_bfloat16*>(logits_gradients));
  }
  return Last();
}

}  // namespace quartet

#include <cuda_runtime.h>

#include <cstdint>

#include "core/base/splitmix64.h"
#include "core/kernels/cuda/draw_rows.h"

namespace quartet {
namespace {

constexpr int kThreads = 1024;

__device__ double Uniform(uint64_t key, int id) {
  return (static_cast<double>(SplitMixFinalise(key + (static_cast<uint64_t>(id) + 1) * kSplitMixStride) >> 11) + 0.5) *
         0x1p-53;
}

// One value of each thread to one of all, in all of them.
template <typename Value, typename Join>
__device__ Value OfAll(Value value, const Join& join) {
  __shared__ Value values[kThreads];
  values[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) values[threadIdx.x] = join(values[threadIdx.x], values[threadIdx.x + half]);
    __syncthreads();
  }
  const Value all = values[0];
  __syncthreads();
  return all;
}

template <typename Score>
struct Best {
  Score score;
  int id;
};

// The higher score, the lower id among equals.
template <typename Score>
__device__ Best<Score> Better(const Best<Score>& a, const Best<Score>& b) {
  return b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;
}

struct Sums {
  double of_log_prob;
  double of_draw;
};

__global__ void __launch_bounds__(kThreads)
    DrawRowsKernel(const float* all_logits, int vocab_size, const RowToDraw* rows, DrawnRow* drawn) {
  const RowToDraw row = rows[blockIdx.x];
  const float* logits = all_logits + static_cast<int64_t>(row.row) * vocab_size;
  const float kNone = -__int_as_float(0x7f800000);

  Best<float> mine = {kNone, vocab_size};
  int has_nan = 0;
  for (int i = threadIdx.x; i < vocab_size; i += kThreads) {
    const float logit = logits[i];
    if (logit > mine.score) mine = {logit, i};
    has_nan |= logit != logit;
  }
  const Best<float> top = OfAll(mine, [](const Best<float>& a, const Best<float>& b) { return Better(a, b); });
  has_nan = __syncthreads_or(has_nan);
  const float largest = has_nan ? __int_as_float(0x7fc00000) : top.score;
  if (!isfinite(largest)) {  // all threads alike
    if (threadIdx.x == 0) drawn[blockIdx.x] = {0, 0, 0, largest};
    return;
  }

  const bool greedy = row.temperature == 0, differs = !greedy && row.temperature != row.log_prob_temperature;
  const float largest_told = largest / row.log_prob_temperature;
  const float largest_drawn = greedy ? 0 : largest / row.temperature;
  Sums sums = {0, 0};
  Best<double> race = {0, vocab_size};
  for (int i = threadIdx.x; i < vocab_size; i += kThreads) {
    const float logit = logits[i];
    float weight = expf(logit / row.log_prob_temperature - largest_told);
    sums.of_log_prob += weight;
    if (greedy) continue;
    if (differs) {
      weight = expf(logit / row.temperature - largest_drawn);
      sums.of_draw += weight;
    }
    const double u = Uniform(row.noise_key, i);
    // -log(u) >= 1 - u: most tokens are ruled out without a logarithm.
    if (!(weight > race.score * (1 - u))) continue;
    const double score = weight / -log(u);
    if (score > race.score) race = {score, i};
  }
  sums = OfAll(sums, [](const Sums& a, const Sums& b) {
    return Sums{a.of_log_prob + b.of_log_prob, a.of_draw + b.of_draw};
  });
  const Best<double> won = OfAll(race, [](const Best<double>& a, const Best<double>& b) { return Better(a, b); });
  if (threadIdx.x != 0) return;
  DrawnRow found;
  found.largest = largest;
  found.id = greedy ? top.id : won.id;
  const float logit = logits[found.id];
  found.log_prob = static_cast<float>(static_cast<double>(logit / row.log_prob_temperature) -
                                      (static_cast<double>(largest_told) + log(sums.of_log_prob)));
  found.sampled_log_prob =
      greedy ? 0
             : static_cast<float>(static_cast<double>(logit / row.temperature) - static_cast<double>(largest_drawn) -
                                  log(differs ? sums.of_draw : sums.of_log_prob));
  drawn[blockIdx.x] = found;
}

}  // namespace

const char* LaunchDrawRows(const float* logits, int64_t vocab_size, const RowToDraw* rows, int64_t count,
                           DrawnRow* drawn, void* stream) {
  if (count == 0) return nullptr;
  DrawRowsKernel<<<static_cast<unsigned>(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      logits, static_cast<int>(vocab_size), rows, drawn);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace quartet

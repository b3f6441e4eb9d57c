#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/base/splitmix64.h"
#include "core/kernels/cuda/draw_rows.h"

namespace quartet {
namespace {

constexpr int kThreads = 256;

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

// A row is cut into parts that blocks work on side by side, always in the same places: sums have the same bits whatever
// the number of rows.
constexpr int kPart = 8192;
int Parts(int64_t vocab_size) { return static_cast<int>((vocab_size + kPart - 1) / kPart); }

struct Sums {
  double of_log_prob;
  double of_draw;
};

// What one block leaves for the next kernel.
struct PartOfRow {
  Best<float> top;  // NaN where one is
  Sums sums;
  Best<double> race;
};

__device__ Best<float> TopOf(const PartOfRow* parts, int count) {
  Best<float> top = parts[0].top;
  for (int p = 1; p < count; ++p) {
    const Best<float> other = parts[p].top;
    if (other.score != other.score || top.score != top.score) {
      top.score = __int_as_float(0x7fc00000);
    } else {
      top = Better(top, other);
    }
  }
  return top;
}

// Block (x, y): part x of row y.
__global__ void __launch_bounds__(kThreads)
    TopsKernel(const float* all_logits, int vocab_size, const RowToDraw* rows, PartOfRow* parts) {
  const float* logits = all_logits + static_cast<int64_t>(rows[blockIdx.y].row) * vocab_size;
  const int end = min(vocab_size, static_cast<int>(blockIdx.x + 1) * kPart);
  Best<float> mine = {-__int_as_float(0x7f800000), vocab_size};
  int has_nan = 0;
  for (int i = blockIdx.x * kPart + threadIdx.x; i < end; i += kThreads) {
    const float logit = logits[i];
    if (logit > mine.score) mine = {logit, i};
    has_nan |= logit != logit;
  }
  Best<float> top = OfAll(mine, [](const Best<float>& a, const Best<float>& b) { return Better(a, b); });
  has_nan = __syncthreads_or(has_nan);
  if (has_nan) top.score = __int_as_float(0x7fc00000);
  if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x].top = top;
}

// What a row is drawn by.
struct DrawScale {
  bool greedy, differs;
  float largest_told, largest_drawn;
};
__device__ DrawScale ScaleOf(const RowToDraw& row, float largest) {
  const bool greedy = row.temperature == 0;
  return {greedy, !greedy && row.temperature != row.log_prob_temperature, largest / row.log_prob_temperature,
          greedy ? 0 : largest / row.temperature};
}

// The same blocks.
__global__ void __launch_bounds__(kThreads)
    RaceKernel(const float* all_logits, int vocab_size, const RowToDraw* rows, PartOfRow* parts) {
  const RowToDraw row = rows[blockIdx.y];
  const float* logits = all_logits + static_cast<int64_t>(row.row) * vocab_size;
  const float largest = TopOf(parts + blockIdx.y * gridDim.x, static_cast<int>(gridDim.x)).score;
  if (!isfinite(largest)) return;  // all threads alike
  const DrawScale scale = ScaleOf(row, largest);
  const int end = min(vocab_size, static_cast<int>(blockIdx.x + 1) * kPart);
  Sums sums = {0, 0};
  Best<double> race = {0, vocab_size};
  double of_warp = 0;                                                     // the best score of its threads
  for (int first = blockIdx.x * kPart; first < end; first += kThreads) {  // all threads of a warp together
    const int i = first + static_cast<int>(threadIdx.x);
    const float logit = i < end ? logits[i] : -__int_as_float(0x7f800000);
    float weight = expf(logit / row.log_prob_temperature - scale.largest_told);
    sums.of_log_prob += weight;
    if (scale.greedy) continue;
    if (scale.differs) {
      weight = expf(logit / row.temperature - scale.largest_drawn);
      sums.of_draw += weight;
    }
    const double u = Uniform(row.noise_key, i);
    // -log(u) >= 1 - u: most tokens are ruled out without a logarithm, which a warp computes for all its threads or
    // none.
    const bool may_win = weight > of_warp * (1 - u);
    if (!__any_sync(0xffffffffu, may_win)) continue;
    const double score = may_win ? weight / -log(u) : 0;
    if (score > race.score) race = {score, i};
    of_warp = race.score;
    for (int bit = 16; bit > 0; bit /= 2) of_warp = fmax(of_warp, __shfl_xor_sync(0xffffffffu, of_warp, bit));
  }
  sums = OfAll(sums, [](const Sums& a, const Sums& b) {
    return Sums{a.of_log_prob + b.of_log_prob, a.of_draw + b.of_draw};
  });
  race = OfAll(race, [](const Best<double>& a, const Best<double>& b) { return Better(a, b); });
  if (threadIdx.x != 0) return;
  PartOfRow& part = parts[blockIdx.y * gridDim.x + blockIdx.x];
  part.sums = sums;
  part.race = race;
}

// A thread a row.
__global__ void FinishKernel(const float* all_logits, int vocab_size, const RowToDraw* rows, int count,
                             const PartOfRow* all_parts, int num_parts, DrawnRow* drawn) {
  const int r = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (r >= count) return;
  const RowToDraw row = rows[r];
  const PartOfRow* parts = all_parts + r * num_parts;
  const Best<float> top = TopOf(parts, num_parts);
  if (!isfinite(top.score)) {
    drawn[r] = {0, 0, 0, top.score};
    return;
  }
  Sums sums = parts[0].sums;
  Best<double> race = parts[0].race;
  for (int p = 1; p < num_parts; ++p) {
    sums = {sums.of_log_prob + parts[p].sums.of_log_prob, sums.of_draw + parts[p].sums.of_draw};
    race = Better(race, parts[p].race);
  }
  const DrawScale scale = ScaleOf(row, top.score);
  DrawnRow found;
  found.largest = top.score;
  found.id = scale.greedy ? top.id : race.id;
  const float logit = all_logits[static_cast<int64_t>(row.row) * vocab_size + found.id];
  found.log_prob = static_cast<float>(static_cast<double>(logit / row.log_prob_temperature) -
                                      (static_cast<double>(scale.largest_told) + log(sums.of_log_prob)));
  found.sampled_log_prob = scale.greedy ? 0
                                        : static_cast<float>(static_cast<double>(logit / row.temperature) -
                                                             static_cast<double>(scale.largest_drawn) -
                                                             log(scale.differs ? sums.of_draw : sums.of_log_prob));
  drawn[r] = found;
}

}  // namespace

int64_t DrawRowsScratch(int64_t vocab_size, int64_t count) {
  return count * Parts(vocab_size) * static_cast<int64_t>(sizeof(PartOfRow));
}

const char* LaunchDrawRows(const float* logits, int64_t vocab_size, const RowToDraw* rows, int64_t count, void* scratch,
                           DrawnRow* drawn, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const int vocab = static_cast<int>(vocab_size), parts = Parts(vocab_size);
  constexpr int64_t kMostRows = (1 << 16) - 1;  // of a launch
  for (int64_t begin = 0; begin < count; begin += kMostRows) {
    const int num_rows = static_cast<int>(std::min(count - begin, kMostRows));
    auto* const left = static_cast<PartOfRow*>(scratch) + begin * parts;
    const dim3 blocks(static_cast<unsigned>(parts), static_cast<unsigned>(num_rows));
    TopsKernel<<<blocks, kThreads, 0, on>>>(logits, vocab, rows + begin, left);
    RaceKernel<<<blocks, kThreads, 0, on>>>(logits, vocab, rows + begin, left);
    constexpr int kRowsOfBlock = 32;
    FinishKernel<<<(num_rows + kRowsOfBlock - 1) / kRowsOfBlock, kRowsOfBlock, 0, on>>>(
        logits, vocab, rows + begin, num_rows, left, parts, drawn + begin);
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace quartet

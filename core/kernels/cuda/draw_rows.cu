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

constexpr int kInfinity = 0x7f800000, kNan = 0x7fc00000;  // bits of fp32

// The largest logits of a row, or of a part of it.
struct Tops {
  Best<float> told;   // NaN where one is
  Best<float> drawn;  // of edited ones
};

// What one block leaves for the next kernel.
struct PartOfRow {
  Tops tops;
  Sums sums;
  Best<double> race;
};

__device__ Tops TopsOf(const PartOfRow* parts, int count) {
  Tops tops = parts[0].tops;
  for (int p = 1; p < count; ++p) {
    const Tops other = parts[p].tops;
    if (other.told.score != other.told.score || tops.told.score != tops.told.score) {
      tops.told.score = __int_as_float(kNan);
    } else {
      tops.told = Better(tops.told, other.told);
    }
    tops.drawn = Better(tops.drawn, other.drawn);
  }
  return tops;
}

__device__ float Edited(float logit, int id, const RowToDraw& row, const LogitEdit* edits) {
  for (int e = row.edits_begin; e < row.edits_end; ++e) {
    if (edits[e].id == id) logit += edits[e].bias;
  }
  return logit;
}

// Block (x, y): part x of row y.
__global__ void __launch_bounds__(kThreads) TopsKernel(const float* all_logits, int vocab_size, const RowToDraw* rows,
                                                       const LogitEdit* edits, PartOfRow* parts) {
  const RowToDraw row = rows[blockIdx.y];
  const float* logits = all_logits + static_cast<int64_t>(row.row) * vocab_size;
  const int end = min(vocab_size, static_cast<int>(blockIdx.x + 1) * kPart);
  const Best<float> none = {-__int_as_float(kInfinity), vocab_size};
  Tops mine = {none, none};
  int has_nan = 0;
  for (int i = blockIdx.x * kPart + threadIdx.x; i < end; i += kThreads) {
    const float logit = logits[i], edited = Edited(logit, i, row, edits);
    if (logit > mine.told.score) mine.told = {logit, i};
    if (edited > mine.drawn.score) mine.drawn = {edited, i};
    has_nan |= logit != logit;
  }
  Tops tops = OfAll(mine, [](const Tops& a, const Tops& b) {
    return Tops{Better(a.told, b.told), Better(a.drawn, b.drawn)};
  });
  has_nan = __syncthreads_or(has_nan);
  if (has_nan) tops.told.score = __int_as_float(kNan);
  if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x].tops = tops;
}

// What a row is drawn by.
struct DrawScale {
  bool greedy, cuts, differs;
  float largest_told, largest_drawn;
};
__device__ DrawScale ScaleOf(const RowToDraw& row, const Tops& tops) {
  const bool greedy = row.temperature == 0, cuts = !greedy && (row.top_k > 0 || row.top_p < 1);
  const bool differs =
      row.temperature != row.log_prob_temperature || row.edits_begin != row.edits_end || cuts || row.min_p > 0;
  return {greedy, cuts, !greedy && differs, tops.told.score / row.log_prob_temperature,
          greedy ? 0 : tops.drawn.score / row.temperature};
}

// What is left of a row by top_k and top_p: tokens of at least this logit over the temperature, of more than this
// weight, or of this weight and up to this id.
struct CutOfRow {
  float least_scaled, least_weight;
  int last_id;
};

constexpr int kCutThreads = 1024, kBins = 256;
// Weights, which are at most 1, as whole numbers: sums of up to 2^18 of them, in any order, have the same bits.
constexpr double kMassOfOne = 17592186044416.0;  // 2^44

// Fp32 as numbers in the same order.
__device__ uint32_t OrderOf(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float FromOrder(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

// The highest key at which the masses of it and all higher ones come to `wanted` or more; `above`: those of higher ones
// alone. visit(add) calls add(key, mass) for each element that the calling thread has. All threads of a block.
template <typename Visit>
__device__ uint32_t KeyAtMass(double wanted, const Visit& visit, unsigned long long* above) {
  __shared__ unsigned long long bins[kBins];
  __shared__ uint32_t chosen;
  __shared__ unsigned long long chosen_above;
  uint32_t prefix = 0;
  unsigned long long higher = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int b = threadIdx.x; b < kBins; b += blockDim.x) bins[b] = 0;
    __syncthreads();
    visit([&](uint32_t key, unsigned long long mass) {
      if (shift == 24 || key >> (shift + 8) == prefix) atomicAdd(&bins[key >> shift & (kBins - 1)], mass);
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      int b = kBins - 1;
      unsigned long long sum = higher;
      while (b > 0 && static_cast<double>(sum + bins[b]) < wanted) sum += bins[b--];
      chosen = static_cast<uint32_t>(b);
      chosen_above = sum;
    }
    __syncthreads();
    prefix = prefix << 8 | chosen;
    higher = chosen_above;
    __syncthreads();
  }
  *above = higher;
  return prefix;
}

// A block a row.
__global__ void __launch_bounds__(kCutThreads)
    CutKernel(const float* all_logits, int vocab_size, const RowToDraw* rows, const LogitEdit* edits,
              const PartOfRow* parts, int num_parts, CutOfRow* cuts) {
  const RowToDraw row = rows[blockIdx.x];
  const Tops tops = TopsOf(parts + static_cast<int64_t>(blockIdx.x) * num_parts, num_parts);
  const DrawScale scale = ScaleOf(row, tops);
  if (!scale.cuts || !isfinite(tops.told.score) || !isfinite(tops.drawn.score)) return;  // all threads alike
  const float* logits = all_logits + static_cast<int64_t>(row.row) * vocab_size;
  const auto scaled_of = [&](int i) { return Edited(logits[i], i, row, edits) / row.temperature; };
  unsigned long long above = 0;
  CutOfRow cut = {-__int_as_float(kInfinity), 0, vocab_size};
  if (row.top_k > 0) {
    cut.least_scaled = FromOrder(KeyAtMass(
        row.top_k,
        [&](const auto& add) {
          for (int i = threadIdx.x; i < vocab_size; i += blockDim.x) add(OrderOf(scaled_of(i)), 1ull);
        },
        &above));
  }
  if (row.top_p < 1) {
    // Calls each(id, weight, mass) for what is left of the calling thread's.
    const auto for_kept = [&](const auto& each) {
      for (int i = threadIdx.x; i < vocab_size; i += blockDim.x) {
        const float scaled = scaled_of(i), weight = expf(scaled - scale.largest_drawn);
        if (scaled < cut.least_scaled || weight == 0 || weight < row.min_p) continue;
        each(i, weight, static_cast<unsigned long long>(weight * kMassOfOne));
      }
    };
    __shared__ unsigned long long total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    unsigned long long own = 0;
    for_kept([&](int, float, unsigned long long mass) { own += mass; });
    atomicAdd(&total, own);
    __syncthreads();
    const double wanted = static_cast<double>(total) * row.top_p;
    const uint32_t key = KeyAtMass(
        wanted,
        [&](const auto& add) {
          for_kept([&](int, float weight, unsigned long long mass) { add(__float_as_uint(weight), mass); });
        },
        &above);
    cut.least_weight = __uint_as_float(key);
    // Of equal ones as many as it takes, lower ids first: the last of them by halving where it may be.
    const double each = floor(cut.least_weight * kMassOfOne);
    const int needed = static_cast<int>(ceil((wanted - static_cast<double>(above)) / each));
    __shared__ int equal;
    const auto equal_up_to = [&](int last) {
      __syncthreads();
      if (threadIdx.x == 0) equal = 0;
      __syncthreads();
      int own_equal = 0;
      for_kept([&](int id, float weight, unsigned long long) {
        own_equal += static_cast<int>(weight == cut.least_weight && id <= last);
      });
      if (own_equal > 0) atomicAdd(&equal, own_equal);
      __syncthreads();
      return equal;
    };
    int low = 0, high = vocab_size;
    if (equal_up_to(vocab_size) <= needed) low = high;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (equal_up_to(middle) >= needed) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    cut.last_id = low;
  }
  if (threadIdx.x == 0) cuts[blockIdx.x] = cut;
}

// The same blocks.
__global__ void __launch_bounds__(kThreads) RaceKernel(const float* all_logits, int vocab_size, const RowToDraw* rows,
                                                       const LogitEdit* edits, const CutOfRow* cuts, PartOfRow* parts) {
  const RowToDraw row = rows[blockIdx.y];
  const float* logits = all_logits + static_cast<int64_t>(row.row) * vocab_size;
  const Tops tops = TopsOf(parts + blockIdx.y * gridDim.x, static_cast<int>(gridDim.x));
  if (!isfinite(tops.told.score) || !isfinite(tops.drawn.score)) return;  // all threads alike
  const DrawScale scale = ScaleOf(row, tops);
  const CutOfRow cut = scale.cuts ? cuts[blockIdx.y] : CutOfRow{-__int_as_float(kInfinity), 0, vocab_size};
  const int end = min(vocab_size, static_cast<int>(blockIdx.x + 1) * kPart);
  Sums sums = {0, 0};
  Best<double> race = {0, vocab_size};
  double of_warp = 0;                                                     // the best score of its threads
  for (int first = blockIdx.x * kPart; first < end; first += kThreads) {  // all threads of a warp together
    const int i = first + static_cast<int>(threadIdx.x);
    const float logit = i < end ? logits[i] : -__int_as_float(kInfinity);
    float weight = expf(logit / row.log_prob_temperature - scale.largest_told);
    sums.of_log_prob += weight;
    if (scale.greedy) continue;
    if (scale.differs) {
      const float scaled = Edited(logit, i, row, edits) / row.temperature;
      weight = expf(scaled - scale.largest_drawn);
      if (scaled < cut.least_scaled || weight < row.min_p || weight < cut.least_weight ||
          (weight == cut.least_weight && i > cut.last_id)) {
        weight = 0;
      }
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
                             const LogitEdit* edits, const PartOfRow* all_parts, int num_parts, DrawnRow* drawn) {
  const int r = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (r >= count) return;
  const RowToDraw row = rows[r];
  const PartOfRow* parts = all_parts + r * num_parts;
  const Tops tops = TopsOf(parts, num_parts);
  if (!isfinite(tops.told.score) || !isfinite(tops.drawn.score)) {
    drawn[r] = {0, 0, 0, tops.told.score, tops.drawn.score};
    return;
  }
  Sums sums = parts[0].sums;
  Best<double> race = parts[0].race;
  for (int p = 1; p < num_parts; ++p) {
    sums = {sums.of_log_prob + parts[p].sums.of_log_prob, sums.of_draw + parts[p].sums.of_draw};
    race = Better(race, parts[p].race);
  }
  const DrawScale scale = ScaleOf(row, tops);
  DrawnRow found;
  found.largest = tops.told.score;
  found.largest_edited = tops.drawn.score;
  found.id = scale.greedy ? tops.drawn.id : race.id;
  const float logit = all_logits[static_cast<int64_t>(row.row) * vocab_size + found.id];
  found.log_prob = static_cast<float>(static_cast<double>(logit / row.log_prob_temperature) -
                                      (static_cast<double>(scale.largest_told) + log(sums.of_log_prob)));
  found.sampled_log_prob =
      scale.greedy ? 0
                   : static_cast<float>(static_cast<double>(Edited(logit, found.id, row, edits) / row.temperature) -
                                        static_cast<double>(scale.largest_drawn) -
                                        log(scale.differs ? sums.of_draw : sums.of_log_prob));
  drawn[r] = found;
}

}  // namespace

int64_t DrawRowsScratch(int64_t vocab_size, int64_t count) {
  static_assert(sizeof(PartOfRow) % alignof(CutOfRow) == 0);
  const int64_t cuts = (count * static_cast<int64_t>(sizeof(CutOfRow)) + 7) / 8 * 8;
  return count * Parts(vocab_size) * static_cast<int64_t>(sizeof(PartOfRow)) + cuts;
}

const char* LaunchDrawRows(const float* logits, int64_t vocab_size, const RowToDraw* rows, const LogitEdit* edits,
                           int64_t count, bool cuts, void* scratch, DrawnRow* drawn, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const int vocab = static_cast<int>(vocab_size), parts = Parts(vocab_size);
  auto* const all_cuts = reinterpret_cast<CutOfRow*>(static_cast<PartOfRow*>(scratch) + count * parts);
  constexpr int64_t kMostRows = (1 << 16) - 1;  // of a launch
  for (int64_t begin = 0; begin < count; begin += kMostRows) {
    const int num_rows = static_cast<int>(std::min(count - begin, kMostRows));
    auto* const left = static_cast<PartOfRow*>(scratch) + begin * parts;
    const dim3 blocks(static_cast<unsigned>(parts), static_cast<unsigned>(num_rows));
    TopsKernel<<<blocks, kThreads, 0, on>>>(logits, vocab, rows + begin, edits, left);
    if (cuts) {
      CutKernel<<<static_cast<unsigned>(num_rows), kCutThreads, 0, on>>>(logits, vocab, rows + begin, edits, left,
                                                                         parts, all_cuts + begin);
    }
    RaceKernel<<<blocks, kThreads, 0, on>>>(logits, vocab, rows + begin, edits, all_cuts + begin, left);
    constexpr int kRowsOfBlock = 32;
    FinishKernel<<<(num_rows + kRowsOfBlock - 1) / kRowsOfBlock, kRowsOfBlock, 0, on>>>(
        logits, vocab, rows + begin, num_rows, edits, left, parts, drawn + begin);
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace quartet

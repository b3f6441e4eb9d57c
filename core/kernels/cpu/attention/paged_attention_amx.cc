#include "core/kernels/cpu/attention/paged_attention_amx.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/hardware/simd.h"
#include "core/kernels/cpu/amx.h"
#include "core/kernels/cpu/products/gemm.h"

namespace quartet {
namespace {

using simd::F16;
using simd::kLanes;

constexpr int64_t kKeys = kAmxKeysAtATime, kKeyTiles = kKeys / kTileRows;
// A block may have sixteen keys, so values are multiplied by that many weights at a time.
constexpr int64_t kValueKeys = PagedCacheLayout::kBlockSizeMultiple;

// Tiles 0 to 3 hold sums; 4 queries and 5 keys, 32 dimensions of each; 6 weights and 7 values, of sixteen keys.
TileShapes AttentionShapes(int64_t rows) {
  constexpr uint16_t kAll = kTileBytes, kWeights = kValueKeys * static_cast<int64_t>(sizeof(uint16_t));
  const auto r = static_cast<uint8_t>(rows);
  return {.row_bytes = {kAll, kAll, kAll, kAll, kAll, kAll, kWeights, kAll},
          .rows = {r, r, r, r, r, kTileRows, r, kValueKeys / 2}};
}

// What one thread works with, kept for its next task.
struct Memory {
  alignas(64) float scores[kTileRows][kKeys] = {};
  alignas(64) uint16_t weights[kTileRows][kKeys];
  alignas(64) float added[kTileRows][kKeyTiles * kTileRows];
  float scale[kTileRows];  // of what there was before these keys
  std::vector<uint16_t> last_values;
};

// Keys that are weighed at a time, sixteen in each part.
struct Keys {
  int64_t parts = 0;
  const uint16_t* keys[kKeyTiles] = {};
  const uint16_t* values[kKeyTiles] = {};
};

// Those of positions [first, end) of the task's head.
Keys KeysAt(const PagedCacheLayout& layout, const PagedAttentionTask<uint16_t>& task, int64_t first, int64_t end) {
  Keys keys;
  for (int64_t position = first; position < end; position += kTileRows, ++keys.parts) {
    const int64_t block = task.blocks[position / layout.block_size], offset = position % layout.block_size;
    const uint16_t* const head = task.cache + (block * layout.kv_heads + task.kv_head) * layout.head_numel();
    keys.keys[keys.parts] = head + 2 * offset;
    keys.values[keys.parts] = head + layout.key_numel() + offset * layout.head_dim;
  }
  return keys;
}

// Asks for lines that come from memory.
QUARTET_SIMD_INLINE void AskFor(const uint16_t* from, int64_t lines, int64_t stride) {
  for (int64_t i = 0; i < lines; ++i) simd::PrefetchToSecondCache(from + i * stride);
}

// Values of `count` keys, fewer than sixteen, with zeros behind them.
const uint16_t* FilledUp(const uint16_t* values, int64_t count, int64_t d, std::vector<uint16_t>* memory) {
  memory->assign(std::max<size_t>(memory->size(), kValueKeys * d), 0);
  std::copy_n(values, count / 2 * 2 * d, memory->begin());
  for (int64_t i = count / 2 * 2 * d; count % 2 != 0 && i < (count + 1) * d; i += 2) (*memory)[i] = values[i];
  return memory->data();
}

// Weights of `count` rows from `row` on, from their scores of the keys from `first` on.
QUARTET_SIMD_CLONES void Weigh(const AmxRows& rows, int64_t row, int64_t count, int64_t first, float factor,
                               Memory* memory) {
  const F16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const F16 unseen = simd::Splat(-std::numeric_limits<float>::infinity());
  for (int64_t r = 0; r < count; ++r) {
    const int64_t visible = rows.visible[row + r] - first;
    F16 score[kKeyTiles], most = unseen;
    for (int64_t t = 0; t < kKeyTiles; ++t) {
      const F16 limit = simd::Splat(static_cast<float>(std::min(visible - t * kLanes, kKeys)));
      score[t] = lane < limit ? simd::Load(memory->scores[r] + t * kLanes) * factor : unseen;
      most = score[t] > most ? score[t] : most;
    }
    float& largest = rows.largest[row + r];
    const float max = std::max(largest, simd::Max(most));
    const float scale = max > largest ? simd::ExpNonPositive(simd::Splat(largest - max))[0] : 1.0f;
    memory->scale[r] = scale;
    largest = max;
    F16 sum = simd::Load(rows.weight_sum + (row + r) * kLanes) * scale;
    for (int64_t t = 0; t < kKeyTiles; ++t) {
      const F16 weight = simd::ExpNonPositive(score[t] - max);
      sum += weight;
      simd::Store(memory->weights[r] + t * kLanes, weight);
    }
    simd::Store(rows.weight_sum + (row + r) * kLanes, sum);
  }
}

// Adds the products with values of `tiles` tiles of dimensions, those from sum `i` on.
QUARTET_SIMD_CLONES void AddToSums(const AmxRows& rows, int64_t row, int64_t count, int64_t d, int64_t i, int64_t tiles,
                                   const Memory& memory) {
  for (int64_t r = 0; r < count; ++r) {
    float* sums = rows.sums + (row + r) * d + i;
    for (int64_t t = 0; t < tiles * kLanes; t += kLanes) {
      simd::Store(sums + t, simd::Load(sums + t) * memory.scale[r] + simd::Load(memory.added[r] + t));
    }
  }
}

template <typename I>
void StoreTiles(float* to, int64_t stride) {
  const auto stride_bytes = stride * static_cast<int64_t>(sizeof(float));
  I::template Store<0>(to, stride_bytes);
  I::template Store<1>(to + kTileRows, stride_bytes);
  I::template Store<2>(to + 2 * kTileRows, stride_bytes);
  I::template Store<3>(to + 3 * kTileRows, stride_bytes);
}
template <typename I>
void ZeroTiles() {
  I::template Zero<0>();
  I::template Zero<1>();
  I::template Zero<2>();
  I::template Zero<3>();
}
// Adds to `count` (1 to 4) tiles the products of one tile by others, of which tile i is at `at(i)` with rows
// `stride_bytes` apart.
template <typename I, int a, int b, typename At>
QUARTET_SIMD_INLINE void AddByEach(int64_t count, int64_t stride_bytes, const At& at) {
  I::template Load<b>(at(0), stride_bytes);
  I::template AddProducts<0, a, b>();
  if (count < 2) return;
  I::template Load<b>(at(1), stride_bytes);
  I::template AddProducts<1, a, b>();
  if (count < 3) return;
  I::template Load<b>(at(2), stride_bytes);
  I::template AddProducts<2, a, b>();
  if (count < 4) return;
  I::template Load<b>(at(3), stride_bytes);
  I::template AddProducts<3, a, b>();
}

template <typename I>
void Attend(const PagedCacheLayout& layout, const PagedAttentionTask<uint16_t>& task, const AmxRows& rows,
            int64_t begin, int64_t end, const PagedAttentionTask<uint16_t>* next) {
  thread_local Memory memory;
  const int64_t d = layout.head_dim, key_stride = 2 * layout.block_size, value_stride = 2 * d;
  const auto bytes = [](int64_t numel) { return numel * static_cast<int64_t>(sizeof(uint16_t)); };
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  const int64_t seen = std::min(end, *std::max_element(rows.visible, rows.visible + rows.count));
  for (int64_t first = begin; first < seen; first += kKeys) {
    const int64_t behind = std::min(first + kKeys, seen);
    Keys keys = KeysAt(layout, task, first, behind), ahead;
    if (const int64_t last = behind % kValueKeys; last != 0) {
      const uint16_t*& values = keys.values[keys.parts - 1];
      values = FilledUp(values, last, d, &memory.last_values);
    }
    // What is read behind them is asked for meanwhile, with each tile the lines of another.
    if (behind < seen) {
      ahead = KeysAt(layout, task, behind, std::min(behind + kKeys, seen));
    } else if (next != nullptr) {
      ahead = KeysAt(layout, *next, 0, std::min(kKeys, next->first_position + next->tokens));
    }
    for (int64_t row = 0; row < rows.count; row += kTileRows) {
      const int64_t taken = std::min(kTileRows, rows.count - row);
      const int64_t* const visible = rows.visible + row;
      if (*std::max_element(visible, visible + taken) <= first) continue;
      ConfigureTiles<I>(AttentionShapes(taken));
      ZeroTiles<I>();
      for (int64_t i = 0; i < d; i += kTileInputs) {
        I::template Load<4>(rows.queries + row * d + i, bytes(d));
        AddByEach<I, 4, 5>(keys.parts, bytes(key_stride), [&](int64_t t) {
          if (t < ahead.parts) AskFor(ahead.keys[t] + i * layout.block_size, kTileInputs / 2, key_stride);
          return keys.keys[t] + i * layout.block_size;
        });
      }
      StoreTiles<I>(memory.scores[0], kKeys);
      Weigh(rows, row, taken, first, factor, &memory);
      for (int64_t i = 0; i < d; i += kKeyTiles * kTileRows) {
        const int64_t tiles = std::min(kKeyTiles, (d - i) / kTileRows);
        ZeroTiles<I>();
        for (int64_t part = 0; part < keys.parts; ++part) {
          I::template Load<6>(memory.weights[0] + part * kValueKeys, sizeof(memory.weights[0]));
          AddByEach<I, 6, 7>(tiles, bytes(value_stride), [&](int64_t t) {
            const int64_t dimension = 2 * (i + t * kTileRows);
            if (part < ahead.parts) AskFor(ahead.values[part] + dimension, kValueKeys / 2, value_stride);
            return keys.values[part] + dimension;
          });
        }
        StoreTiles<I>(memory.added[0], kKeyTiles * kTileRows);
        AddToSums(rows, row, taken, d, i, tiles, memory);
      }
      for (int64_t part = keys.parts; part < ahead.parts; ++part) {
        AskFor(ahead.keys[part], d / 2, key_stride);
        for (int64_t i = 0; i < d; i += kTileRows) AskFor(ahead.values[part] + 2 * i, kValueKeys / 2, value_stride);
      }
      ahead.parts = 0;
    }
  }
  ReleaseTiles<I>();
}

}  // namespace

bool HasAmxAttention(const PagedCacheLayout& layout) {
  static const bool has = CpuKernels() == "amx" || CpuKernels() == "amx_emulated";
  return has && layout.head_dim % kTileInputs == 0;
}

void AmxAttend(const PagedCacheLayout& layout, const PagedAttentionTask<uint16_t>& task, const AmxRows& rows,
               int64_t begin, int64_t end, const PagedAttentionTask<uint16_t>* next) {
#if defined(__x86_64__) && defined(__linux__)
  if (CpuKernels() == "amx") return Attend<AmxInstructions>(layout, task, rows, begin, end, next);
#endif
  Attend<AmxEmulation>(layout, task, rows, begin, end, next);
}

}  // namespace quartet

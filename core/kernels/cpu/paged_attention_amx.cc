#include "core/kernels/cpu/paged_attention_amx.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/hardware/simd.h"
#include "core/kernels/cpu/amx.h"
#include "core/kernels/cpu/gemm.h"

namespace quartet {
namespace {

using simd::F16;
using simd::kLanes;

constexpr int64_t kKeys = kAmxKeysAtATime, kKeyTiles = kKeys / kTileRows;
constexpr int64_t kLineBytes = 64;

// What one thread works with, kept for its next task.
struct Memory {
  alignas(64) float scores[kTileRows][kKeys] = {};
  alignas(64) uint16_t weights[kTileRows][kKeys];
  alignas(64) float added[kTileRows][kKeyTiles * kTileRows];
  float scale[kTileRows];  // of what there was before these keys
  std::vector<uint16_t> values;
};

struct Keys {
  const PagedCacheLayout& layout;
  const PagedAttentionTask<uint16_t>& task;

  // Of the task's head, in the block that holds a position of the sequence.
  const uint16_t* HeadAt(int64_t position) const {
    const int64_t block = task.blocks[position / layout.block_size];
    return task.cache + (block * layout.kv_heads + task.kv_head) * layout.head_numel();
  }
  const uint16_t* KeysAt(int64_t position) const { return HeadAt(position) + 2 * (position % layout.block_size); }
  const uint16_t* ValueAt(int64_t position) const {
    return HeadAt(position) + layout.key_numel() + position % layout.block_size * layout.padded_head_dim();
  }
};

// Asks for the keys and values [first, end), which come from memory.
void Prefetch(const Keys& keys, int64_t first, int64_t end) {
  const int64_t d = keys.layout.head_dim, S = keys.layout.block_size;
  for (int64_t position = first; position < end; position += kTileRows) {
    const uint16_t* key = keys.KeysAt(position);
    for (int64_t i = 0; i < d / 2; ++i) simd::PrefetchToSecondCache(key + 2 * i * S);
    const auto* value = reinterpret_cast<const char*>(keys.ValueAt(position));
    const int64_t bytes = std::min<int64_t>(kTileRows, end - position) * d * static_cast<int64_t>(sizeof(uint16_t));
    for (int64_t i = 0; i < bytes; i += kLineBytes) simd::PrefetchToSecondCache(value + i);
  }
}

// Values of `count` keys from `first` on, as tiles are multiplied by: row i has those of keys 2 i and 2 i + 1 side by
// side, 32 dimensions as the even ones and then the odd ones. Filled up with zeros to a multiple of 32 keys.
QUARTET_SIMD_CLONES void PairValues(const Keys& keys, int64_t first, int64_t count, uint16_t* pairs) {
  const int64_t d = keys.layout.head_dim;
  const auto load = [](const uint16_t* from) {
    simd::U16 bits;
    std::memcpy(&bits, from, sizeof(bits));
    return bits;
  };
  for (int64_t key = 0; key < (count + kTileInputs - 1) / kTileInputs * kTileInputs; key += 2, pairs += 2 * d) {
    const uint16_t* const value = key < count ? keys.ValueAt(first + key) : nullptr;
    const uint16_t* const next = key + 1 < count ? keys.ValueAt(first + key + 1) : nullptr;
    for (int64_t i = 0; i < d; i += 2 * kLanes) {
      const simd::U16 a = value != nullptr ? load(value + i) : simd::U16{};
      const simd::U16 b = next != nullptr ? load(next + i) : simd::U16{};
      const simd::U16 even = (a & 0xFFFFu) | b << 16, odd = a >> 16 | (b & 0xFFFF0000u);
      std::memcpy(pairs + 2 * i, &even, sizeof(even));
      std::memcpy(pairs + 2 * i + 2 * kLanes, &odd, sizeof(odd));
    }
  }
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
    const float scale = max > largest ? std::exp(largest - max) : 1.0f;
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
// Tile 4 times `count` (1 to 4) tiles, of which tile i is at `at(i)`, with rows `stride` elements apart.
template <typename I, typename At>
QUARTET_SIMD_INLINE void AddProducts(int64_t count, int64_t stride, const At& at) {
  const auto stride_bytes = stride * static_cast<int64_t>(sizeof(uint16_t));
  I::template Load<5>(at(0), stride_bytes);
  I::template AddProducts<0, 4, 5>();
  if (count < 2) return;
  I::template Load<6>(at(1), stride_bytes);
  I::template AddProducts<1, 4, 6>();
  if (count < 3) return;
  I::template Load<7>(at(2), stride_bytes);
  I::template AddProducts<2, 4, 7>();
  if (count < 4) return;
  I::template Load<5>(at(3), stride_bytes);
  I::template AddProducts<3, 4, 5>();
}

template <typename I>
void Attend(const Keys& keys, const AmxRows& rows, int64_t begin, int64_t end) {
  thread_local Memory memory;
  const int64_t d = keys.layout.head_dim;
  memory.values.resize(std::max<size_t>(memory.values.size(), kKeys * d));
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  const int64_t seen = std::min(end, *std::max_element(rows.visible, rows.visible + rows.count));
  for (int64_t first = begin; first < seen; first += kKeys) {
    const int64_t count = std::min(kKeys, seen - first);
    Prefetch(keys, first + count, std::min(seen, first + count + kKeys));
    PairValues(keys, first, count, memory.values.data());
    for (int64_t row = 0; row < rows.count; row += kTileRows) {
      const int64_t taken = std::min(kTileRows, rows.count - row);
      const int64_t* const visible = rows.visible + row;
      if (*std::max_element(visible, visible + taken) <= first) continue;
      ConfigureTiles<I>(taken);
      ZeroTiles<I>();
      for (int64_t i = 0; i < d; i += kTileInputs) {
        I::template Load<4>(rows.queries + row * d + i, d * static_cast<int64_t>(sizeof(uint16_t)));
        AddProducts<I>((count + kTileRows - 1) / kTileRows, 2 * keys.layout.block_size,
                       [&](int64_t t) { return keys.KeysAt(first + t * kTileRows) + i * keys.layout.block_size; });
      }
      StoreTiles<I>(memory.scores[0], kKeys);
      Weigh(rows, row, taken, first, factor, &memory);
      for (int64_t i = 0; i < d; i += kKeyTiles * kTileRows) {
        const int64_t tiles = std::min(kKeyTiles, (d - i) / kTileRows);
        ZeroTiles<I>();
        for (int64_t key = 0; key < count; key += kTileInputs) {
          I::template Load<4>(memory.weights[0] + key, sizeof(memory.weights[0]));
          AddProducts<I>(tiles, 2 * d,
                         [&](int64_t t) { return memory.values.data() + key * d + 2 * (i + t * kTileRows); });
        }
        StoreTiles<I>(memory.added[0], kKeyTiles * kTileRows);
        AddToSums(rows, row, taken, d, i, tiles, memory);
      }
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
               int64_t begin, int64_t end) {
#if defined(__x86_64__) && defined(__linux__)
  if (CpuKernels() == "amx") return Attend<AmxInstructions>({layout, task}, rows, begin, end);
#endif
  Attend<AmxEmulation>({layout, task}, rows, begin, end);
}

}  // namespace quartet

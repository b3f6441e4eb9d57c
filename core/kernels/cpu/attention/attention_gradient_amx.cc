// Products are of bf16: weights and the gradients of scores are rounded to it before they are multiplied.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "core/hardware/simd.h"
#include "core/kernels/cpu/amx.h"
#include "core/kernels/cpu/attention/gradient_tiles.h"
#include "core/kernels/cpu/products/gemm.h"

namespace quartet {
namespace {

using simd::F16;
using simd::kLanes;

// [rows, columns] (+)= A [rows, depth] B, of which B's columns are panels; multiples of 32.
struct Product {
  const uint16_t* a;
  int64_t a_stride;
  const uint16_t* panels;
  int64_t panel_numel;
  int64_t rows, columns, depth;
  float* out;
  int64_t out_stride;
  bool add;
};

template <typename I>
void Multiply(const Product& p) {
  const auto a_bytes = p.a_stride * static_cast<int64_t>(sizeof(uint16_t));
  const auto out_bytes = p.out_stride * static_cast<int64_t>(sizeof(float));
  for (int64_t row = 0; row < p.rows; row += 2 * kTileRows) {
    for (int64_t column = 0; column < p.columns; column += 2 * kPanelRows) {
      float* const out = p.out + row * p.out_stride + column;
      float* const lower = out + kTileRows * p.out_stride;
      if (p.add) {
        I::template Load<0>(out, out_bytes);
        I::template Load<1>(out + kPanelRows, out_bytes);
        I::template Load<2>(lower, out_bytes);
        I::template Load<3>(lower + kPanelRows, out_bytes);
      } else {
        I::template Zero<0>();
        I::template Zero<1>();
        I::template Zero<2>();
        I::template Zero<3>();
      }
      const uint16_t* const a = p.a + row * p.a_stride;
      const uint16_t* const panel = p.panels + column / kPanelRows * p.panel_numel;
      for (int64_t k = 0; k < p.depth; k += kTileInputs) {
        AddProducts<I, true, 2>(a + k, a_bytes, panel + k * kPanelRows, p.panel_numel);
      }
      I::template Store<0>(out, out_bytes);
      I::template Store<1>(out + kPanelRows, out_bytes);
      I::template Store<2>(lower, out_bytes);
      I::template Store<3>(lower + kPanelRows, out_bytes);
    }
  }
}

// What one thread works with beside its scratch memory.
struct Memory {
  alignas(64) float scores[kQueryRows][kKeyRows];
  alignas(64) float gradients[kQueryRows][kKeyRows];  // of weights
  alignas(64) uint16_t weights[kQueryRows][kKeyRows];
  alignas(64) uint16_t score_gradients[kQueryRows][kKeyRows];
  // With the room that TransposeBf16 needs.
  alignas(64) uint16_t weights_by_key[kKeyRows + 1][kQueryRows];
  alignas(64) uint16_t score_gradients_by_key[kKeyRows + 1][kQueryRows];
};

// Weights, and the gradients of scores times sqrt(d), from scores times sqrt(d) and gradients of weights. What a row
// does not see becomes 0, as do the rows behind the tile's.
QUARTET_SIMD_CLONES void Weigh(const QueryTile& tile, int64_t columns, float scale, const float* log_sums,
                               const float* deltas, int64_t number_stride, Memory* memory) {
  const F16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (int64_t r = 0; r < tile.count; ++r) {
    const float log_sum = log_sums[r * number_stride], delta = deltas[r * number_stride];
    for (int64_t c = 0; c < columns; c += kLanes) {
      const F16 seen = simd::Splat(static_cast<float>(tile.visible + r * tile.more - c));
      const F16 exponential = simd::ExpNonPositive(simd::Load(memory->scores[r] + c) * scale - log_sum);
      const F16 weight = lane < seen ? exponential : F16{};
      simd::Store(memory->weights[r] + c, weight);
      simd::Store(memory->score_gradients[r] + c, weight * (simd::Load(memory->gradients[r] + c) - delta));
    }
  }
  for (int64_t r = tile.count; r < kQueryRows; ++r) {
    std::fill_n(memory->weights[r], columns, uint16_t{0});
    std::fill_n(memory->score_gradients[r], columns, uint16_t{0});
  }
}

QUARTET_SIMD_CLONES void Narrow(const float* from, int64_t rows, int64_t d, float scale, uint16_t* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < d; i += kLanes) simd::Store(to + r * stride + i, simd::Load(from + r * d + i) * scale);
  }
}

// `all` rows of d, end to end, of which those behind the first `count` are 0.
void CopyRows(const uint16_t* from, int64_t stride, int64_t count, int64_t all, int64_t d, uint16_t* to) {
  for (int64_t r = 0; r < count; ++r) std::copy_n(from + r * stride, d, to + r * d);
  std::fill_n(to + count * d, (all - count) * d, uint16_t{0});
}

template <typename I>
class AmxTiles final : public GradientTiles {
 public:
  AmxTiles(const AttentionGradientHead<uint16_t>& head, int64_t own_rows, float* scratch)
      : head_(head), rows_(RoundUp(own_rows, kQueryRows)), memory_(Aligned(scratch)) {}
  ~AmxTiles() override { ReleaseTiles<I>(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  void ReadKeys(int64_t first, int64_t used) override {
    const int64_t start = first * head_.key_stride;
    const auto pack = [&](uint16_t* panels) {
      for (int64_t i = 0; i < kKeyRows; i += kPanelRows)
        PackPanel(rows_of_keys_ + i * d_, kPanelRows, d_, d_, panels + i * d_);
    };
    CopyRows(head_.values + start, head_.key_stride, used, kKeyRows, d_, rows_of_keys_);
    pack(value_panels_);
    CopyRows(head_.keys + start, head_.key_stride, used, kKeyRows, d_, rows_of_keys_);
    pack(key_panels_);
    PackColumns(rows_of_keys_, d_, d_, kKeyRows, key_columns_);
  }

  void Meet(const QueryTile& tile) override {
    thread_local Memory memory;
    ConfigureTiles<I>(ShapesOf(kQueryRows));
    const int64_t start = tile.first * head_.query_stride + tile.head * d_,
                  columns = RoundUp(tile.columns, kTileInputs);
    const int64_t numbers = tile.first * head_.number_stride + tile.head;
    CopyRows(head_.queries + start, head_.query_stride, tile.count, kQueryRows, d_, queries_);
    CopyRows(head_.output_gradients + start, head_.query_stride, tile.count, kQueryRows, d_, gradients_);
    Multiply<I>(
        {queries_, d_, key_panels_, d_ * kPanelRows, kQueryRows, columns, d_, memory.scores[0], kKeyRows, false});
    Multiply<I>({gradients_, d_, value_panels_, d_ * kPanelRows, kQueryRows, columns, d_, memory.gradients[0], kKeyRows,
                 false});
    Weigh(tile, columns, scale_, head_.log_sums + numbers, head_.deltas + numbers, head_.number_stride, &memory);
    if (tile.own_row >= 0) {
      Multiply<I>({memory.score_gradients[0], kKeyRows, key_columns_, kKeyRows * kPanelRows, kQueryRows, d_, columns,
                   query_sums_ + (tile.head * rows_ + tile.own_row) * d_, d_, true});
    }
    if (!tile.of_keys) return;
    const auto add = [&](const uint16_t* by_query, uint16_t* by_key, const uint16_t* rows, float* sums) {
      TransposeBf16(by_query, columns, kKeyRows, kQueryRows, by_key, kQueryRows);
      PackColumns(rows, d_, d_, kQueryRows, columns_);
      Multiply<I>({by_key, kQueryRows, columns_, kQueryRows * kPanelRows, columns, d_, kQueryRows, sums, d_, true});
    };
    add(memory.weights[0], memory.weights_by_key[0], gradients_, value_sums_);
    add(memory.score_gradients[0], memory.score_gradients_by_key[0], queries_, key_sums_);
  }

  void StartKeySums() override {
    std::fill_n(key_sums_, kKeyRows * d_, 0.0f);
    std::fill_n(value_sums_, kKeyRows * d_, 0.0f);
  }
  void StoreKeySums(int64_t first, int64_t used) override {
    const int64_t start = first * head_.key_stride;
    Narrow(key_sums_, used, d_, scale_, head_.key_gradients + start, head_.key_stride);
    Narrow(value_sums_, used, d_, 1, head_.value_gradients + start, head_.key_stride);
  }
  void StartQuerySums() override { std::fill_n(query_sums_, head_.group * rows_ * d_, 0.0f); }
  void StoreQuerySums(int64_t first, int64_t count) override {
    for (int64_t g = 0; g < head_.group; ++g) {
      Narrow(query_sums_ + g * rows_ * d_, count, d_, scale_,
             head_.query_gradients + first * head_.query_stride + g * d_, head_.query_stride);
    }
  }

 private:
  // Where the next line of memory begins.
  static float* Aligned(float* scratch) {
    constexpr size_t kLineBytes = 64;
    void* aligned = scratch;
    size_t room = 2 * kLineBytes;
    return static_cast<float*>(std::align(kLineBytes, kLineBytes, aligned, room));
  }
  uint16_t* TakeBf16(int64_t count) {
    return reinterpret_cast<uint16_t*>(
        memory_.Take(count * static_cast<int64_t>(sizeof(uint16_t)) / static_cast<int64_t>(sizeof(float))));
  }

  const AttentionGradientHead<uint16_t>& head_;
  const int64_t d_ = head_.head_dim, rows_;
  const float scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d_)));
  // All together less than AttentionGradientScratch, whose tiles are of floats.
  Scratch memory_;
  float* query_sums_ = memory_.Take(head_.group * rows_ * d_);  // of each head its own rows
  float* key_sums_ = memory_.Take(kKeyRows * d_);
  float* value_sums_ = memory_.Take(kKeyRows * d_);
  uint16_t* rows_of_keys_ = TakeBf16(kKeyRows * d_);
  uint16_t* key_panels_ = TakeBf16(kKeyRows * d_);
  uint16_t* value_panels_ = TakeBf16(kKeyRows * d_);
  uint16_t* key_columns_ = TakeBf16(kKeyRows * d_);
  uint16_t* queries_ = TakeBf16(kQueryRows * d_);
  uint16_t* gradients_ = TakeBf16(kQueryRows * d_);
  uint16_t* columns_ = TakeBf16(kQueryRows * d_);
};

}  // namespace

std::unique_ptr<GradientTiles> MakeAmxGradientTiles(const AttentionGradientHead<uint16_t>& head, int64_t own_rows,
                                                    float* scratch) {
#if defined(__x86_64__) && defined(__linux__)
  if (CpuKernels() == "amx") return std::make_unique<AmxTiles<AmxInstructions>>(head, own_rows, scratch);
#endif
  return std::make_unique<AmxTiles<AmxEmulation>>(head, own_rows, scratch);
}

}  // namespace quartet

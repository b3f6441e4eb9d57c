// By tiles of keys, each against all tiles of queries that see it; scores are computed again instead of kept (Dao:
// "FlashAttention-2", 2023, algorithm 2). All products are of tiles in fp32, whose columns lie in vectors.
//
// Where sequences share tokens, what a key and a query of different sequences give each other is computed twice, for
// the one and for the other: no task writes what another writes.

#include "core/kernels/cpu/attention/attention_gradient.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>

#include "core/hardware/simd.h"
#include "core/kernels/cpu/attention/gradient_tiles.h"
#include "core/kernels/cpu/attention/paged_attention_amx.h"

namespace quartet {
namespace {

using simd::F16;
using simd::kLanes;

// [rows, columns] (+)= a b of depth k, where element (m, k) of a is a[m * row_step + k * depth_step], and b's rows are
// contiguous.
struct Product {
  const float* a;
  int64_t row_step, depth_step;
  const float* b;
  int64_t b_stride;
  int64_t depth;
  float* out;
  int64_t out_stride;
  bool add;
};

constexpr int kRowsAtATime = 4;

// Of kRowsAtATime rows from `row` and of C columns from `column`, in vectors V.
template <typename V, int C>
QUARTET_SIMD_INLINE void MultiplyPart(const Product& p, int64_t row, int64_t column) {
  constexpr int kVectors = C / simd::kLanesOf<V>;
  const float* a = p.a + row * p.row_step;
  const float* b = p.b + column;
  float* out = p.out + row * p.out_stride + column;
  V sum[kRowsAtATime][kVectors] = {};
  if (p.add) {
    for (int m = 0; m < kRowsAtATime; ++m) {
      for (int v = 0; v < kVectors; ++v) simd::LoadTo(out + m * p.out_stride + v * simd::kLanesOf<V>, &sum[m][v]);
    }
  }
  for (int64_t k = 0; k < p.depth; ++k) {
    V part[kVectors];
    for (int v = 0; v < kVectors; ++v) simd::LoadTo(b + k * p.b_stride + v * simd::kLanesOf<V>, &part[v]);
    for (int m = 0; m < kRowsAtATime; ++m) {
      const float factor = a[m * p.row_step + k * p.depth_step];
      for (int v = 0; v < kVectors; ++v) sum[m][v] += factor * part[v];
    }
  }
  for (int m = 0; m < kRowsAtATime; ++m) {
    for (int v = 0; v < kVectors; ++v) simd::StoreFrom(sum[m][v], out + m * p.out_stride + v * simd::kLanesOf<V>);
  }
}

// `rows` is a multiple of kRowsAtATime, `columns` of kLanes.
QUARTET_SIMD_CLONES void Multiply(const Product& p, int64_t rows, int64_t columns) {
  const bool sixteen = simd::HasSixteenLanes();
  for (int64_t row = 0; row < rows; row += kRowsAtATime) {
    int64_t column = 0;
    if (sixteen) {
      for (; column + 4 * kLanes <= columns; column += 4 * kLanes) MultiplyPart<F16, 4 * kLanes>(p, row, column);
      for (; column + 2 * kLanes <= columns; column += 2 * kLanes) MultiplyPart<F16, 2 * kLanes>(p, row, column);
    }
    for (; column < columns; column += kLanes) MultiplyPart<simd::F8, kLanes>(p, row, column);
  }
}

// From scores and gradients of weights [rows, kKeyRows] in place: the weights, and the gradients of the scores. Row r
// sees its first `visible` + r * `more` columns; what it does not see becomes 0, as do the rows behind `rows` up to
// `all_rows`.
QUARTET_SIMD_CLONES void Weigh(float* scores, float* gradients, int64_t visible, int64_t more, const float* log_sums,
                               const float* deltas, int64_t rows, int64_t all_rows, int64_t columns) {
  const F16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (int64_t r = 0; r < rows; ++r) {
    float* score = scores + r * kKeyRows;
    float* gradient = gradients + r * kKeyRows;
    for (int64_t c = 0; c < columns; c += kLanes) {
      const F16 seen = simd::Splat(static_cast<float>(visible + r * more - c));
      const F16 exponential = simd::ExpNonPositive(simd::Load(score + c) - log_sums[r]);
      const F16 weight = lane < seen ? exponential : F16{};
      const F16 of_score = weight * (simd::Load(gradient + c) - deltas[r]);
      simd::Store(score + c, weight);
      simd::Store(gradient + c, of_score);
    }
  }
  for (int64_t r = rows; r < all_rows; ++r) {
    std::fill_n(scores + r * kKeyRows, columns, 0.0f);
    std::fill_n(gradients + r * kKeyRows, columns, 0.0f);
  }
}

template <typename Element>
QUARTET_SIMD_CLONES void Widen(const Element* from, int64_t stride, int64_t rows, int64_t d, float scale, float* to,
                               int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < d; i += kLanes) {
      simd::Store(to + r * to_stride + i, simd::LoadSome(from + r * stride + i, d - i) * scale);
    }
  }
}

template <typename Element>
QUARTET_SIMD_CLONES void Narrow(const float* from, int64_t from_stride, int64_t rows, int64_t d, float scale,
                                Element* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < d; i += kLanes) {
      simd::StoreSome(to + r * stride + i, simd::Load(from + r * from_stride + i) * scale, d - i);
    }
  }
}

// sums[r]: the dot product of row r of a and b.
template <typename Element>
QUARTET_SIMD_CLONES void Dot(const Element* a, const Element* b, int64_t stride, int64_t rows, int64_t d, float* sums) {
  for (int64_t r = 0; r < rows; ++r) {
    F16 sum = {};
    for (int64_t i = 0; i < d; i += kLanes) {
      sum += simd::LoadSome(a + r * stride + i, d - i) * simd::LoadSome(b + r * stride + i, d - i);
    }
    sums[r] = simd::Sum(sum);
  }
}

// [d, kKeyRows] from [rows, stride]; columns behind `rows` are 0.
void Transpose(const float* from, int64_t stride, int64_t rows, int64_t d, float* to) {
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t r = 0; r < rows; ++r) to[i * kKeyRows + r] = from[r * stride + i];
    std::fill_n(to + i * kKeyRows + rows, kKeyRows - rows, 0.0f);
  }
}

// In fp32.
template <typename Element>
class FloatTiles final : public GradientTiles {
 public:
  FloatTiles(const AttentionGradientHead<Element>& head, int64_t own_rows, float* scratch)
      : head_(head), rows_(RoundUp(own_rows, kQueryRows)), memory_(scratch) {}

  void ReadKeys(int64_t first, int64_t used) override {
    // Values first: their rows are not needed once they are transposed.
    const int64_t start = first * head_.key_stride;
    Widen(head_.values + start, head_.key_stride, used, d_, 1, keys_, padded_);
    Transpose(keys_, padded_, used, d_, values_dk_);
    Widen(head_.keys + start, head_.key_stride, used, d_, 1, keys_, padded_);
    std::fill_n(keys_ + used * padded_, (kKeyRows - used) * padded_, 0.0f);
    Transpose(keys_, padded_, used, d_, keys_dk_);
  }

  void Meet(const QueryTile& tile) override {
    const int64_t count = tile.count, all = RoundUp(count, kRowsAtATime);
    const int64_t start = tile.first * head_.query_stride + tile.head * d_;
    Widen(head_.queries + start, head_.query_stride, count, d_, scale_, queries_, padded_);
    Widen(head_.output_gradients + start, head_.query_stride, count, d_, 1, gradients_, padded_);
    std::fill_n(queries_ + count * padded_, (all - count) * padded_, 0.0f);
    std::fill_n(gradients_ + count * padded_, (all - count) * padded_, 0.0f);
    for (int64_t r = 0; r < count; ++r) {
      log_sums_[r] = head_.log_sums[(tile.first + r) * head_.number_stride + tile.head];
      deltas_[r] = head_.deltas[(tile.first + r) * head_.number_stride + tile.head];
    }
    const auto rows_times = [&](const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth,
                                float* out, int64_t out_stride, bool add, int64_t out_columns) {
      Multiply({a, a_stride, 1, b, b_stride, depth, out, out_stride, add}, all, out_columns);
    };
    rows_times(queries_, padded_, keys_dk_, kKeyRows, d_, weights_, kKeyRows, false, tile.columns);
    rows_times(gradients_, padded_, values_dk_, kKeyRows, d_, score_gradients_, kKeyRows, false, tile.columns);
    Weigh(weights_, score_gradients_, tile.visible, tile.more, log_sums_, deltas_, count, all, tile.columns);
    if (tile.own_row >= 0) {
      rows_times(score_gradients_, kKeyRows, keys_, padded_, tile.columns,
                 query_sums_ + (tile.head * rows_ + tile.own_row) * padded_, padded_, true, padded_);
    }
    if (!tile.of_keys) return;
    Multiply({weights_, 1, kKeyRows, gradients_, padded_, all, value_sums_, padded_, true}, tile.columns, padded_);
    Multiply({score_gradients_, 1, kKeyRows, queries_, padded_, all, key_sums_, padded_, true}, tile.columns, padded_);
  }

  void StartKeySums() override {
    std::fill_n(key_sums_, kKeyRows * padded_, 0.0f);
    std::fill_n(value_sums_, kKeyRows * padded_, 0.0f);
  }
  void StoreKeySums(int64_t first, int64_t used) override {
    const int64_t start = first * head_.key_stride;
    Narrow(key_sums_, padded_, used, d_, 1, head_.key_gradients + start, head_.key_stride);
    Narrow(value_sums_, padded_, used, d_, 1, head_.value_gradients + start, head_.key_stride);
  }
  void StartQuerySums() override { std::fill_n(query_sums_, head_.group * rows_ * padded_, 0.0f); }
  void StoreQuerySums(int64_t first, int64_t count) override {
    for (int64_t g = 0; g < head_.group; ++g) {
      Narrow(query_sums_ + g * rows_ * padded_, padded_, count, d_, scale_,
             head_.query_gradients + first * head_.query_stride + g * d_, head_.query_stride);
    }
  }

 private:
  const AttentionGradientHead<Element>& head_;
  const int64_t d_ = head_.head_dim, padded_ = RoundUp(d_, kLanes), rows_;
  const float scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d_)));
  Scratch memory_;
  float* query_sums_ = memory_.Take(head_.group * rows_ * padded_);  // of each head its own rows
  float* keys_ = memory_.Take(kKeyRows * padded_);
  float* keys_dk_ = memory_.Take(d_ * kKeyRows);
  float* values_dk_ = memory_.Take(d_ * kKeyRows);
  float* key_sums_ = memory_.Take(kKeyRows * padded_);
  float* value_sums_ = memory_.Take(kKeyRows * padded_);
  float* queries_ = memory_.Take(kQueryRows * padded_);
  float* gradients_ = memory_.Take(kQueryRows * padded_);
  float* weights_ = memory_.Take(kQueryRows * kKeyRows);
  float* score_gradients_ = memory_.Take(kQueryRows * kKeyRows);
  float* log_sums_ = memory_.Take(kQueryRows);
  float* deltas_ = memory_.Take(kQueryRows);
};

template <typename Element>
std::unique_ptr<GradientTiles> MakeGradientTiles(const AttentionGradientHead<Element>& head, int64_t own_rows,
                                                 float* scratch) {
  if constexpr (std::is_same_v<Element, uint16_t>) {
    if (HasAmxAttention({.head_dim = head.head_dim})) return MakeAmxGradientTiles(head, own_rows, scratch);
  }
  return std::make_unique<FloatTiles<Element>>(head, own_rows, scratch);
}

}  // namespace

std::vector<AttentionGradientTask> AttentionGradientTasks(const SequenceRows& rows) {
  const std::vector<std::vector<RowRange>> shared = SharedRanges(rows);
  // By their first row: who else sees a sequence's own tokens.
  std::map<int64_t, std::vector<AttentionGradientTask::Later>> after;
  for (size_t i = 0; i < rows.count(); ++i) {
    if (rows.OwnOf(i) == 0) continue;
    for (const RowRange& range : shared[i]) {
      after[range.first].push_back({.rows = {rows.cu_seqlens[i], rows.OwnOf(i)}, .seen = range.count});
    }
  }
  std::vector<AttentionGradientTask> tasks;
  for (size_t i = 0; i < rows.count(); ++i) {
    const RowRange own = {rows.cu_seqlens[i], rows.OwnOf(i)};
    if (own.count == 0) continue;
    AttentionGradientTask task = {.own = own, .of_queries = true, .before = shared[i], .keys = own, .after = {}};
    const auto later = after.find(own.first);
    if (later == after.end()) {
      tasks.push_back(std::move(task));
      continue;
    }
    // What many see is as much work as they are many: its keys apart, tile by tile.
    task.keys.count = 0;
    tasks.push_back(std::move(task));
    for (int64_t first = 0; first < own.count; first += kKeyRows) {
      tasks.push_back({.own = own,
                       .of_queries = false,
                       .before = {},
                       .keys = {own.first + first, std::min(kKeyRows, own.count - first)},
                       .after = later->second});
    }
  }
  return tasks;
}

int64_t AttentionGradientScratch(int64_t own_rows, int64_t group, int64_t head_dim) {
  const int64_t padded = RoundUp(head_dim, kLanes), rows = RoundUp(own_rows, kQueryRows);
  return group * rows * padded + kKeyRows * (3 * padded + 2 * head_dim) + kQueryRows * 2 * (padded + kKeyRows + 1);
}

template <typename Element>
void AttentionDeltas(const Element* outputs, const Element* output_gradients, int64_t stride, int64_t rows, int64_t d,
                     float* deltas) {
  Dot(outputs, output_gradients, stride, rows, d, deltas);
}

template <typename Element>
void AttendGradient(const AttentionGradientHead<Element>& head, const AttentionGradientTask& task, float* scratch) {
  const std::unique_ptr<GradientTiles> tiles = MakeGradientTiles(head, task.own.count, scratch);
  // In tiles: rows that all see the first `seen` keys of those that were read.
  const auto meet_all = [&](int64_t g, const RowRange& range, int64_t seen, bool of_keys, bool own) {
    for (int64_t i = 0; i < range.count; i += kQueryRows) {
      tiles->Meet({.head = g,
                   .first = range.first + i,
                   .count = std::min(kQueryRows, range.count - i),
                   .visible = seen,
                   .columns = RoundUp(seen, kLanes),
                   .of_keys = of_keys,
                   .own_row = own ? i : -1});
    }
  };

  if (task.of_queries) tiles->StartQuerySums();
  for (const RowRange& range : task.before) {
    for (int64_t first = 0; first < range.count; first += kKeyRows) {
      const int64_t used = std::min(kKeyRows, range.count - first);
      tiles->ReadKeys(range.first + first, used);
      for (int64_t g = 0; g < head.group; ++g) meet_all(g, task.own, used, /*of_keys=*/false, /*own=*/true);
    }
  }
  for (int64_t first_key = 0; first_key < task.own.count; first_key += kKeyRows) {
    const int64_t used = std::min(kKeyRows, task.own.count - first_key), used_columns = RoundUp(used, kLanes);
    const int64_t key_row = task.own.first + first_key;
    const bool of_keys = key_row >= task.keys.first && key_row < task.keys.first + task.keys.count;
    if (!of_keys && !task.of_queries) continue;
    tiles->ReadKeys(key_row, used);
    if (of_keys) tiles->StartKeySums();
    for (int64_t g = 0; g < head.group; ++g) {
      for (int64_t first = first_key; first < task.own.count; first += kQueryRows) {
        const int64_t count = std::min(kQueryRows, task.own.count - first);
        tiles->Meet({.head = g,
                     .first = task.own.first + first,
                     .count = count,
                     .visible = first - first_key + 1,
                     .more = 1,
                     .columns = std::min(used_columns, RoundUp(first + count - first_key, kLanes)),
                     .of_keys = of_keys,
                     .own_row = task.of_queries ? first : -1});
      }
      if (!of_keys) continue;
      for (const AttentionGradientTask::Later& later : task.after) {
        const int64_t seen = std::min(used, later.seen - first_key);
        if (seen > 0) meet_all(g, later.rows, seen, /*of_keys=*/true, /*own=*/false);
      }
    }
    if (of_keys) tiles->StoreKeySums(key_row, used);
  }
  if (task.of_queries) tiles->StoreQuerySums(task.own.first, task.own.count);
}

template void AttentionDeltas<float>(const float*, const float*, int64_t, int64_t, int64_t, float*);
template void AttentionDeltas<uint16_t>(const uint16_t*, const uint16_t*, int64_t, int64_t, int64_t, float*);
template void AttendGradient<float>(const AttentionGradientHead<float>&, const AttentionGradientTask&, float*);
template void AttendGradient<uint16_t>(const AttentionGradientHead<uint16_t>&, const AttentionGradientTask&, float*);

}  // namespace quartet

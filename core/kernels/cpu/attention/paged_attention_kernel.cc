// One pass over the keys with a running maximum and sum (Milakov, Gimelshein: "Online normalizer calculation for
// softmax", 2018), for up to eight rows of queries at a time so that each key and value is loaded once for them.

#include "core/kernels/cpu/attention/paged_attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/hardware/simd.h"
#include "core/kernels/cpu/attention/paged_attention_amx.h"

namespace quartet {
namespace {

using simd::F16;
using simd::kLanes;

// Two rows of as many numbers as V has lanes, `stride` apart. Of bf16 they lie side by side, so that a shift and a mask
// widen them.
template <typename V>
QUARTET_SIMD_INLINE void LoadRows(const float* from, int64_t stride, V* first, V* second) {
  simd::LoadTo(from, first);
  simd::LoadTo(from + stride, second);
}
template <typename V>
QUARTET_SIMD_INLINE void LoadRows(const uint16_t* from, int64_t, V* first, V* second) {
  simd::LoadPairs(from, first, second);
}
// Number `i` of the first of two rows.
inline const float* InRows(const float* rows, int64_t i) { return rows + i; }
inline const uint16_t* InRows(const uint16_t* rows, int64_t i) { return rows + 2 * i; }

// scores[r][j] = the product of query r and key j of sixteen, R rows of d elements: those of even dimensions and those
// of odd ones are summed by themselves.
template <typename V, int R, typename Element>
QUARTET_SIMD_INLINE void Score(const float* queries, const Element* key, int64_t d, int64_t block_size,
                               const Element* next, float (*scores)[kLanes]) {
  for (int j = 0; j < kLanes; j += simd::kLanesOf<V>) {
    V score[R] = {}, odd_score[R] = {};
    const Element* keys = InRows(key, j);
    for (int64_t i = 0; i < d; i += 2) {
      V even, odd;
      LoadRows(keys + i * block_size, block_size, &even, &odd);
      if (j == 0) simd::PrefetchToSecondCache(next + i * block_size);
      for (int r = 0; r < R; ++r) {
        score[r] += queries[r * d + i] * even;
        odd_score[r] += queries[r * d + i + 1] * odd;
      }
    }
    for (int r = 0; r < R; ++r) simd::StoreFrom(score[r] + odd_score[r], scores[r] + j);
  }
}

// sums[r] += sum over keys j of weight[r][j] * value of key j, R rows of `padded` elements, of which those from `i` on
// that N vectors have.
template <typename V, int R, int N, typename Element>
QUARTET_SIMD_INLINE void AddValuesFrom(int64_t i, const Element* value, int64_t padded, int64_t keys,
                                       const float (*weight)[kLanes], const Element* next, float* sums) {
  constexpr int kStep = simd::kLanesOf<V>;
  V sum[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) simd::LoadTo(sums + r * padded + i + n * kStep, &sum[r][n]);
  }
  int64_t j = 0;
  for (; j + 2 <= keys; j += 2) {
    for (int n = 0; n < N; ++n) {
      const int64_t at = i + n * kStep;
      V first, second;
      LoadRows(InRows(value + j * padded, at), padded, &first, &second);
      if (at % kLanes == 0) {
        simd::PrefetchToSecondCache(InRows(next + j * padded, at));
        if constexpr (std::is_same_v<Element, float>) simd::PrefetchToSecondCache(next + (j + 1) * padded + at);
      }
      for (int r = 0; r < R; ++r) {
        sum[r][n] += weight[r][j] * first;
        sum[r][n] += weight[r][j + 1] * second;
      }
    }
  }
  for (int n = 0; n < N && j < keys; ++n) {
    V first, second;
    LoadRows(InRows(value + j * padded, i + n * kStep), /*stride=*/0, &first, &second);
    for (int r = 0; r < R; ++r) sum[r][n] += weight[r][j] * first;
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) simd::StoreFrom(sum[r][n], sums + r * padded + i + n * kStep);
  }
}
template <typename V, int R, typename Element>
QUARTET_SIMD_INLINE void AddValues(const Element* value, int64_t padded, int64_t keys, const float (*weight)[kLanes],
                                   const Element* next, float* sums) {
  constexpr int kStep = simd::kLanesOf<V>;
  // Of two vectors at a time where there are: sums of one would wait for each other.
  int64_t i = 0;
  for (; i + 2 * kStep <= padded; i += 2 * kStep) AddValuesFrom<V, R, 2>(i, value, padded, keys, weight, next, sums);
  if (i < padded) AddValuesFrom<V, R, 1>(i, value, padded, keys, weight, next, sums);
}

// One row of AddValues' sums times `scale`, as d elements.
template <typename Element>
QUARTET_SIMD_INLINE void StoreSums(const float* sums, float scale, int64_t d, Element* out) {
  for (int64_t i = 0; i < d; i += kLanes) simd::StoreSome(out + i, simd::Load(sums + i) * scale, d - i);
}

// Rows of queries that are worked on together, in fp32 and already divided by sqrt(d), and what has been made of the
// keys up to now.
template <typename Element>
struct Rows {
  const float* queries;     // [R, d]
  const Element* as_given;  // [R, d], not divided
  const int64_t* visible;   // keys that each row sees; at least 1
  Element* const* outputs;
  float* log_sums;    // [R]
  float* largest;     // [R], score
  float* weight_sum;  // [R, 16]: of every sixteenth key
  float* sums;        // [R, padded d]

  Rows From(int64_t row, const PagedCacheLayout& layout) const {
    return {queries + row * layout.head_dim,
            as_given + row * layout.head_dim,
            visible + row,
            outputs + row,
            log_sums + row,
            largest + row,
            weight_sum + row * kLanes,
            sums + row * layout.padded_head_dim()};
  }
};

// The task's head of the block that holds a position of the sequence.
template <typename Element>
QUARTET_SIMD_INLINE const Element* HeadAt(const PagedCacheLayout& layout, const PagedAttentionTask<Element>& task,
                                          int64_t position) {
  const int64_t block = task.blocks[position / layout.block_size];
  return task.cache + (block * layout.kv_heads + task.kv_head) * layout.head_numel();
}

// Goes on with keys [begin, end), as far as the rows see them. Both are multiples of sixteen.
template <typename V, int R, typename Element>
QUARTET_SIMD_INLINE void AttendRows(const PagedCacheLayout& layout, const PagedAttentionTask<Element>& task,
                                    const Rows<Element>& rows, int64_t begin, int64_t end) {
  const int64_t d = layout.head_dim;
  const int64_t padded = layout.padded_head_dim();
  const int64_t block_size = layout.block_size;
  int64_t keys = 0;
  for (int r = 0; r < R; ++r) keys = std::max(keys, rows.visible[r]);

  float largest[R];
  F16 weight_sum[R];
  for (int r = 0; r < R; ++r) {
    largest[r] = rows.largest[r];
    weight_sum[r] = simd::Load(rows.weight_sum + r * kLanes);
  }
  const F16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

  for (int64_t first = begin; first < std::min(keys, end); first += kLanes) {
    const Element* head = HeadAt(layout, task, first);
    const int64_t offset = first % block_size;
    const Element* key = InRows(head, offset);
    const Element* value = head + layout.key_numel() + offset * padded;
    // What is read next comes from memory, and its place is not to be guessed: it is asked for while this is used.
    const int64_t next = first + kLanes < keys ? first + kLanes : first;
    const Element* next_head = HeadAt(layout, task, next);
    const Element* next_key = InRows(next_head, next % block_size);
    const Element* next_value = next_head + layout.key_numel() + next % block_size * padded;

    alignas(64) float score[R][kLanes];
    Score<V, R>(rows.queries, key, d, block_size, next_key, score);

    alignas(64) float weight[R][kLanes];
    for (int r = 0; r < R; ++r) {
      const F16 limit = simd::Splat(static_cast<float>(std::min<int64_t>(rows.visible[r] - first, kLanes)));
      const F16 masked = lane < limit ? simd::Load(score[r]) : simd::Splat(-std::numeric_limits<float>::infinity());
      const float max = simd::Max(masked);
      if (max > largest[r]) {
        const float scale = std::exp(largest[r] - max);
        weight_sum[r] *= scale;
        for (int64_t i = 0; i < padded; i += kLanes) {
          simd::Store(rows.sums + r * padded + i, simd::Load(rows.sums + r * padded + i) * scale);
        }
        largest[r] = max;
      }
      const F16 w = simd::ExpNonPositive(masked - largest[r]);
      weight_sum[r] += w;
      simd::Store(weight[r], w);
    }

    AddValues<V, R>(value, padded, std::min<int64_t>(keys - first, kLanes), weight, next_value, rows.sums);
  }

  for (int r = 0; r < R; ++r) {
    rows.largest[r] = largest[r];
    simd::Store(rows.weight_sum + r * kLanes, weight_sum[r]);
  }
}

constexpr int kMostRows = 8;

// `count` rows, in parts for which there is code: of at most so many whose sums stay in registers.
template <typename V, typename Element>
QUARTET_SIMD_INLINE void AttendSome(const PagedCacheLayout& layout, const PagedAttentionTask<Element>& task,
                                    const Rows<Element>& rows, int64_t count, int64_t begin, int64_t end) {
  int64_t row = 0;
  if constexpr (std::is_same_v<V, F16>) {
    for (; count - row >= kMostRows; row += kMostRows) {
      AttendRows<V, kMostRows>(layout, task, rows.From(row, layout), begin, end);
    }
  }
  for (; count - row >= 4; row += 4) AttendRows<V, 4>(layout, task, rows.From(row, layout), begin, end);
  switch (count - row) {
    case 1:
      return AttendRows<V, 1>(layout, task, rows.From(row, layout), begin, end);
    case 2:
      return AttendRows<V, 2>(layout, task, rows.From(row, layout), begin, end);
    case 3:
      return AttendRows<V, 3>(layout, task, rows.From(row, layout), begin, end);
  }
}

template <typename Element>
QUARTET_SIMD_INLINE void StoreRows(const PagedCacheLayout& layout, const Rows<Element>& rows, int64_t count) {
  for (int64_t r = 0; r < count; ++r) {
    const float sum = simd::Sum(simd::Load(rows.weight_sum + r * kLanes));
    rows.log_sums[r] = rows.largest[r] + std::log(sum);
    StoreSums(rows.sums + r * layout.padded_head_dim(), 1.0f / sum, layout.head_dim, rows.outputs[r]);
  }
}

template <typename Element>
QUARTET_SIMD_SIXTEEN void AttendBySixteen(const PagedCacheLayout& layout, const PagedAttentionTask<Element>& task,
                                          const Rows<Element>& rows, int64_t count, int64_t begin, int64_t end) {
  AttendSome<F16>(layout, task, rows, count, begin, end);
}
template <typename Element>
QUARTET_SIMD_EIGHT_CLONES void AttendByEight(const PagedCacheLayout& layout, const PagedAttentionTask<Element>& task,
                                             const Rows<Element>& rows, int64_t count, int64_t begin, int64_t end) {
  AttendSome<simd::F8>(layout, task, rows, count, begin, end);
}
template <typename Element>
void AttendByVectors(const PagedCacheLayout& layout, const PagedAttentionTask<Element>& task, const Rows<Element>& rows,
                     int64_t count, int64_t begin, int64_t end) {
  const auto attend = simd::HasSixteenLanes() ? &AttendBySixteen<Element> : &AttendByEight<Element>;
  attend(layout, task, rows, count, begin, end);
}
void Attend(const PagedCacheLayout& layout, const PagedAttentionTask<float>& task, const Rows<float>& rows,
            int64_t count, int64_t begin, int64_t end, const PagedAttentionTask<float>* /*next*/) {
  AttendByVectors(layout, task, rows, count, begin, end);
}
void Attend(const PagedCacheLayout& layout, const PagedAttentionTask<uint16_t>& task, const Rows<uint16_t>& rows,
            int64_t count, int64_t begin, int64_t end, const PagedAttentionTask<uint16_t>* next) {
  if (!HasAmxAttention(layout)) return AttendByVectors(layout, task, rows, count, begin, end);
  AmxAttend(layout, task, {count, rows.as_given, rows.visible, rows.largest, rows.weight_sum, rows.sums}, begin, end,
            next);
}
QUARTET_SIMD_CLONES void StoreFloat(const PagedCacheLayout& layout, const Rows<float>& rows, int64_t count) {
  StoreRows(layout, rows, count);
}
QUARTET_SIMD_CLONES void StoreBf16(const PagedCacheLayout& layout, const Rows<uint16_t>& rows, int64_t count) {
  StoreRows(layout, rows, count);
}
void Store(const PagedCacheLayout& layout, const Rows<float>& rows, int64_t count) { StoreFloat(layout, rows, count); }
void Store(const PagedCacheLayout& layout, const Rows<uint16_t>& rows, int64_t count) {
  StoreBf16(layout, rows, count);
}

// One thread's memory for rows, kept for its next task.
template <typename Element>
class RowMemory {
 public:
  static RowMemory& OfThisThread(const PagedCacheLayout& layout, int64_t rows) {
    thread_local RowMemory memory;
    memory.Grow(layout, rows);
    return memory;
  }

  // Puts row `i` of the task, tokens and in them heads one after the other, into row `row`, before any key.
  void Start(const PagedCacheLayout& layout, const PagedAttentionTask<Element>& task, int64_t i, int64_t row) {
    const int64_t d = layout.head_dim, padded = layout.padded_head_dim(), token = i / task.group;
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
    const int64_t start = token * task.token_stride + i % task.group * d;
    for (int64_t k = 0; k < d; k += kLanes) {
      simd::StoreSome(&queries_[row * d + k], simd::LoadSome(task.queries + start + k, d - k) * scale, d - k);
    }
    std::copy_n(task.queries + start, d, &as_given_[row * d]);
    visible_[row] = task.first_position + token + 1;
    outputs_[row] = task.outputs + start;
    largest_[row] = -std::numeric_limits<float>::infinity();
    std::fill_n(&weight_sum_[row * kLanes], kLanes, 0.0f);
    std::fill_n(&sums_[row * padded], padded, 0.0f);
  }
  // What Store left of `row`.
  void TellLogSum(const PagedAttentionTask<Element>& task, int64_t i, int64_t row) const {
    if (task.log_sums == nullptr) return;
    task.log_sums[i / task.group * task.log_sum_stride + i % task.group] = log_sums_[row];
  }

  Rows<Element> rows() {
    return {queries_.data(),  as_given_.data(), visible_.data(),    outputs_.data(),
            log_sums_.data(), largest_.data(),  weight_sum_.data(), sums_.data()};
  }

 private:
  void Grow(const PagedCacheLayout& layout, int64_t rows) {
    const auto grow = [](auto& values, int64_t size) {
      if (static_cast<int64_t>(values.size()) < size) values.resize(size);
    };
    grow(queries_, rows * layout.head_dim);
    grow(as_given_, rows * layout.head_dim);
    grow(visible_, rows);
    grow(outputs_, rows);
    grow(log_sums_, rows);
    grow(largest_, rows);
    grow(weight_sum_, rows * kLanes);
    grow(sums_, rows * layout.padded_head_dim());
  }

  std::vector<float> queries_;
  std::vector<Element> as_given_;
  std::vector<int64_t> visible_;
  std::vector<Element*> outputs_;
  std::vector<float> log_sums_, largest_, weight_sum_, sums_;
};

constexpr int64_t kAllKeys = std::numeric_limits<int64_t>::max();

// Whether keys are best read once for all rows of a task, or of several.
template <typename Element>
bool TakesAllRows(const PagedCacheLayout& layout) {
  return std::is_same_v<Element, uint16_t> && HasAmxAttention(layout);
}

}  // namespace

template <typename Element>
void WriteToCache(const PagedCacheLayout& layout, const Element* key_d, const Element* value_d, int64_t offset,
                  Element* head) {
  for (int64_t i = 0; i < layout.head_dim; ++i) {
    if constexpr (sizeof(Element) == sizeof(uint16_t)) {
      head[(i / 2 * layout.block_size + offset) * 2 + i % 2] = key_d[i];
    } else {
      head[i * layout.block_size + offset] = key_d[i];
    }
  }
  Element* const values = head + layout.key_numel();
  if constexpr (sizeof(Element) == sizeof(uint16_t)) {
    uint16_t* const pairs = values + offset / 2 * 2 * layout.padded_head_dim() + offset % 2;
    for (int64_t i = 0; i < layout.head_dim; ++i) pairs[2 * i] = value_d[i];
  } else {
    std::copy_n(value_d, layout.head_dim, values + offset * layout.padded_head_dim());
  }
}

template <typename Element>
void PagedAttend(const PagedCacheLayout& layout, const PagedAttentionTask<Element>& task,
                 const PagedAttentionTask<Element>* next) {
  const int64_t total = task.tokens * task.group;
  const int64_t most = TakesAllRows<Element>(layout) ? total : std::min<int64_t>(total, kMostRows);
  auto& memory = RowMemory<Element>::OfThisThread(layout, most);
  for (int64_t first = 0; first < total; first += most) {
    const int64_t count = std::min(most, total - first);
    for (int64_t r = 0; r < count; ++r) memory.Start(layout, task, first + r, r);
    Attend(layout, task, memory.rows(), count, 0, kAllKeys, next);
    Store(layout, memory.rows(), count);
    for (int64_t r = 0; r < count; ++r) memory.TellLogSum(task, first + r, r);
  }
}

template <typename Element>
void PagedAttendTogether(const PagedCacheLayout& layout, const std::vector<PagedAttentionTask<Element>>& tasks,
                         int64_t shared) {
  // Keys that stay in a core's first cache until all tasks have read them.
  constexpr int64_t kKeysAtATime = kAmxKeysAtATime;
  const int64_t group = tasks.front().group, count = static_cast<int64_t>(tasks.size());
  auto& memory = RowMemory<Element>::OfThisThread(layout, count * group);
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t g = 0; g < group; ++g) memory.Start(layout, tasks[t], g, t * group + g);
  }
  const auto rows_of = [&](int64_t t) { return memory.rows().From(t * group, layout); };
  int64_t end = shared * layout.block_size;
  if (TakesAllRows<Element>(layout)) {
    end -= end % kKeysAtATime;
    Attend(layout, tasks.front(), rows_of(0), count * group, 0, end, nullptr);
  }
  for (int64_t first = 0; first < end && !TakesAllRows<Element>(layout); first += kKeysAtATime) {
    for (int64_t t = 0; t < count; ++t) {
      Attend(layout, tasks[t], rows_of(t), group, first, std::min(first + kKeysAtATime, end), nullptr);
    }
  }
  for (int64_t t = 0; t < count; ++t) Attend(layout, tasks[t], rows_of(t), group, end, kAllKeys, nullptr);
  Store(layout, memory.rows(), count * group);
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t g = 0; g < group; ++g) memory.TellLogSum(tasks[t], g, t * group + g);
  }
}

template void WriteToCache<float>(const PagedCacheLayout&, const float*, const float*, int64_t, float*);
template void WriteToCache<uint16_t>(const PagedCacheLayout&, const uint16_t*, const uint16_t*, int64_t, uint16_t*);
template void PagedAttend<float>(const PagedCacheLayout&, const PagedAttentionTask<float>&,
                                 const PagedAttentionTask<float>*);
template void PagedAttend<uint16_t>(const PagedCacheLayout&, const PagedAttentionTask<uint16_t>&,
                                    const PagedAttentionTask<uint16_t>*);
template void PagedAttendTogether<float>(const PagedCacheLayout&, const std::vector<PagedAttentionTask<float>>&,
                                         int64_t);
template void PagedAttendTogether<uint16_t>(const PagedCacheLayout&, const std::vector<PagedAttentionTask<uint16_t>>&,
                                            int64_t);

}  // namespace quartet

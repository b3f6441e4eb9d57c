// What a wide item of core/kernels/cuda/paged_items.h computes, in tiles of rows and keys. A GPU's group of threads
// runs an item (paged_kernel.cu); the same code runs on one thread of the CPU, which is how it is tested.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/kernels/cuda/paged_items.h"

namespace quartet {

// Where an item's working memory lies; rows are longer than what they hold, so that columns spread over memory banks,
// and begin at multiples of 16 bytes. Offsets in bytes, each a multiple of 128.
struct TileMemory {
  static constexpr int kParts = 8;  // in which a row's scores are worked on
  int dims;                         // d in whole sixteens
  int row;                          // elements between rows of q, keys and values
  int score_row, weight_row, sum_row;
  int q, keys, values, scores, sums, row_values, bytes;

  QUARTET_HOST_DEVICE constexpr TileMemory(int rows, int head_dim)
      : dims((head_dim + 15) / 16 * 16),
        row(dims + 8),
        score_row(kTileKeys + 4),
        weight_row(kTileKeys + 8),
        sum_row(dims + 4),
        q(0),
        keys(Next(q, rows * row * 2)),
        // The weights of values take the keys' place: no more is read of these then.
        values(Next(keys, Larger(kTileKeys * row, rows * weight_row) * 2)),
        scores(Next(values, kTileKeys * row * 2)),
        sums(Next(scores, rows * score_row * 4)),
        row_values(Next(sums, rows * sum_row * 4)),
        bytes(Next(row_values, (rows * (3 + kParts) + 1) * 4)) {}

 private:
  QUARTET_HOST_DEVICE static constexpr int Next(int offset, int size) { return (offset + size + 127) / 128 * 128; }
  QUARTET_HOST_DEVICE static constexpr int Larger(int a, int b) { return a > b ? a : b; }
};

// Computes `item` for `kv_head`, in `memory` of TileMemory(rows of the item in whole kNarrowRows, d).bytes, aligned to
// 128. `group` is the threads that do it:
//   group.ForEach(n, f)                    f(i) for i in [0, n), in any order; returns when all are done
//   group.Scores(a, lda, b, ldb, c, ldc, M, N, K)   c [M, N] = a [M, K] b [N, K]^T, bf16 into fp32
//   group.AddProduct(a, lda, b, ldb, c, ldc, M, N, K)   c [M, N] += a [M, K] b [K, N]
// of whole sixteens each, and the same of when they return.
template <typename Group>
QUARTET_DEVICE void AttendItem(Group& group, const PagedKernelArgs& args, const AttentionItem& item, int kv_head,
                               char* memory) {
  constexpr int kParts = TileMemory::kParts, kPartKeys = kTileKeys / kParts;
  const int G = args.heads / args.kv_heads, d = args.head_dim;
  const int used_rows = item.tokens * G;
  const int rows = (used_rows + kNarrowRows - 1) / kNarrowRows * kNarrowRows;
  const TileMemory at(rows, d);
  auto* const q = reinterpret_cast<uint16_t*>(memory + at.q);
  auto* const keys = reinterpret_cast<uint16_t*>(memory + at.keys);
  auto* const weights = keys;
  auto* const values = reinterpret_cast<uint16_t*>(memory + at.values);
  auto* const scores = reinterpret_cast<float*>(memory + at.scores);
  auto* const sums = reinterpret_cast<float*>(memory + at.sums);
  auto* const largest = reinterpret_cast<float*>(memory + at.row_values);
  float* const total = largest + rows;           // of e^(score - largest)
  float* const rescale = total + rows;           // of what was added up before this tile
  float* const of_part = rescale + rows;         // [rows, kParts]: a part's largest score, then its total
  float* const grown = of_part + rows * kParts;  // not 0: some row's largest score did
  const float scale = 1 / sqrtf(static_cast<float>(d));
  const int eights = at.dims / 8;
  const EightElements zeros = {};
  group.ForEach(rows * eights, [&](int i) {
    const int r = i / eights, c = i % eights * 8;
    const bool is = r < used_rows && c < d;
    *reinterpret_cast<EightElements*>(q + r * at.row + c) =
        is ? *reinterpret_cast<const EightElements*>(args.q + (item.row + r / G) * args.q_stride +
                                                     (kv_head * G + r % G) * d + c)
           : zeros;
    for (int k = 0; k < 8; ++k) sums[r * at.sum_row + c + k] = 0;
    if (c == 0) {
      largest[r] = -INFINITY;
      total[r] = 0;
    }
  });
  for (int first = item.begin; first < item.end; first += kTileKeys) {
    group.ForEach(kTileKeys * eights, [&](int i) {
      const int n = i / eights, c = i % eights * 8, position = first + n;
      EightElements key = zeros, value = zeros;
      if (position < item.end && c < d) {
        const int64_t slot =
            static_cast<int64_t>(args.tables[item.table + position / args.block_size]) * args.block_size +
            position % args.block_size;
        const int64_t from = (slot * args.kv_heads + kv_head) * d + c;
        key = *reinterpret_cast<const EightElements*>(args.keys + from);
        value = *reinterpret_cast<const EightElements*>(args.values + from);
      }
      *reinterpret_cast<EightElements*>(keys + n * at.row + c) = key;
      *reinterpret_cast<EightElements*>(values + n * at.row + c) = value;
    });
    group.Scores(q, at.row, keys, at.row, scores, at.score_row, rows, kTileKeys, at.dims);
    group.ForEach(rows * kParts, [&](int i) {
      const int r = i / kParts, part = i % kParts;
      const int last = r < used_rows ? item.position + r / G : -1;  // that the row sees
      float most = -INFINITY;
      for (int n = part * kPartKeys; n < (part + 1) * kPartKeys; ++n) {
        float* const score = scores + r * at.score_row + n;
        const bool seen = first + n <= last && first + n < item.end;
        *score = seen ? *score * scale : -INFINITY;
        most = fmaxf(most, *score);
      }
      of_part[i] = most;
      if (i == 0) *grown = 0;
    });
    group.ForEach(rows, [&](int r) {
      float most = largest[r];
      for (int part = 0; part < kParts; ++part) most = fmaxf(most, of_part[r * kParts + part]);
      const bool grows = most > largest[r];
      rescale[r] = grows ? expf(largest[r] - most) : 1;
      if (grows) *grown = 1;
      largest[r] = most;
    });
    group.ForEach(rows * kParts, [&](int i) {
      const int r = i / kParts, part = i % kParts;
      float sum = 0;
      for (int n = part * kPartKeys; n < (part + 1) * kPartKeys; ++n) {
        const float score = scores[r * at.score_row + n];
        const float weight = score == -INFINITY ? 0 : expf(score - largest[r]);
        // What is added up is what the values are multiplied with.
        const uint16_t rounded = Bf16OfFloat(weight);
        weights[r * at.weight_row + n] = rounded;
        sum += FloatOfBf16(rounded);
      }
      of_part[i] = sum;
    });
    group.ForEach(*grown != 0 ? rows * at.dims : rows, [&](int i) {
      if (*grown != 0) {
        const int r = i / at.dims, c = i % at.dims;
        sums[r * at.sum_row + c] *= rescale[r];
      }
      if (i >= rows) return;
      float sum = total[i] * rescale[i];
      for (int part = 0; part < kParts; ++part) sum += of_part[i * kParts + part];
      total[i] = sum;
    });
    group.AddProduct(weights, at.weight_row, values, at.row, sums, at.sum_row, rows, at.dims, kTileKeys);
  }
  group.ForEach(used_rows * d, [&](int i) {
    const int r = i / d, c = i % d;
    args.out[(static_cast<int64_t>(item.row + r / G) * args.heads + kv_head * G + r % G) * d + c] =
        Bf16OfFloat(sums[r * at.sum_row + c] / total[r]);
  });
}

}  // namespace quartet

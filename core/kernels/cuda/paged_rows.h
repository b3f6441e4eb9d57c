// What a narrow item of core/kernels/cuda/paged_items.h computes, a few of its rows at a time: each of some warps takes
// keys of its own, all rows of which stay in registers. A GPU's warps run it (paged_rows.cu); the same code runs on one
// thread of the CPU, which is how it is tested.
//
// In a warp kLanes lanes read a key and its value together, eight elements each, and as many sets of lanes read others
// at the same time. Each set of each warp weighs its keys by itself; what they have found is merged at the end.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/kernels/cuda/paged_items.h"

namespace quartet {

constexpr int kLanesOfWarp = 32;
constexpr int kRowWarps = 4;
// That a lane reads one behind the other before it weighs them. They lie in one block: items begin at multiples of
// kTileKeys, and blocks are of multiples of sixteen keys.
constexpr int kKeysOfLane = 4;

// Where a warp's row lies in what warps have found: the sum of values, the largest score, the sum of weights.
QUARTET_HOST_DEVICE constexpr int FoundRow(int lanes) { return lanes * 8 + 2; }
QUARTET_HOST_DEVICE constexpr int FoundFloats(int rows, int lanes) { return kRowWarps * rows * FoundRow(lanes); }

struct MaxOf {
  QUARTET_HOST_DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct SumOf {
  QUARTET_HOST_DEVICE float operator()(float a, float b) const { return a + b; }
};

QUARTET_DEVICE inline void Widen(const EightElements& from, float* to) {
  QUARTET_UNROLL
  for (int k = 0; k < 4; ++k) {
    uint32_t two;
    memcpy(&two, from.elements + 2 * k, sizeof(two));
    const uint32_t first = two << 16, second = two & 0xffff0000u;
    memcpy(to + 2 * k, &first, sizeof(first));
    memcpy(to + 2 * k + 1, &second, sizeof(second));
  }
}

// By what sums of weights of 2^(score - largest) are multiplied where `most` is the largest score of others as well.
QUARTET_DEVICE inline float Rescaled(float largest, float most) {
  return largest == -INFINITY ? 0 : exp2f(largest - most);
}

// A lane's share of kRows rows: its eight elements of the scaled queries and of the sums of values.
template <int kRows>
struct RowsOfLane {
  float q[kRows][8];
  float sums[kRows][8];
  float largest[kRows];
  float total[kRows];  // of 2^(score - largest)
  int last[kRows];     // the last position that the row sees
  EightElements keys[kKeysOfLane], values[kKeysOfLane];
  float scores[kRows][kKeysOfLane];  // then weights
};

// The part of warp `w` in rows [first_row, first_row + kRows) of `item`, for heads of at most 8 * kLanes elements:
// writes its place of `found`, FoundFloats(kRows, kLanes). `warp`:
//   PerLane<T>              one T a lane: state(lane)
//   ForEachLane(f)          f(lane)
//   Reduce<from, to>(f, op) f(lane), a float&, becomes op of it in all lanes whose numbers differ in bits from .. to /
//   2
template <int kRows, int kLanes, typename Warp>
QUARTET_DEVICE void AttendRows(Warp& warp, const PagedKernelArgs& args, const AttentionItem& item, int kv_head,
                               int first_row, int w, float* found) {
  constexpr int kKeys = kLanesOfWarp / kLanes * kKeysOfLane;
  const int G = args.heads / args.kv_heads, d = args.head_dim, used_rows = item.tokens * G;
  const auto S = static_cast<uint32_t>(args.block_size);
  const int64_t key_stride = static_cast<int64_t>(args.kv_heads) * d;
  const float scale = 1.44269504f / sqrtf(static_cast<float>(d));  // scores are powers of two
  typename Warp::template PerLane<RowsOfLane<kRows>> state;
  warp.ForEachLane([&](int lane) {
    RowsOfLane<kRows>& own = state(lane);
    const int c = lane % kLanes * 8;
    QUARTET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int row = first_row + r, token = row / G;
      EightElements q = {};
      if (row < used_rows && c < d) {
        q = *reinterpret_cast<const EightElements*>(args.q + (item.row + token) * args.q_stride +
                                                    (kv_head * G + row % G) * d + c);
      }
      Widen(q, own.q[r]);
      QUARTET_UNROLL
      for (int k = 0; k < 8; ++k) {
        own.q[r][k] *= scale;
        own.sums[r][k] = 0;
      }
      own.largest[r] = -INFINITY;
      own.total[r] = 0;
      own.last[r] = item.position + token;
    }
  });
  for (int first = item.begin + w * kKeys; first < item.end; first += kRowWarps * kKeys) {
    warp.ForEachLane([&](int lane) {
      RowsOfLane<kRows>& own = state(lane);
      const int position = first + lane / kLanes * kKeysOfLane, c = lane % kLanes * 8;
      const bool reads = position < item.end && c < d;
      const auto at = static_cast<uint32_t>(position);
      const int64_t slot = reads ? static_cast<int64_t>(args.tables[item.table + at / S]) * S + at % S : 0;
      const int64_t from = slot * key_stride + kv_head * d + c;
      QUARTET_UNROLL
      for (int u = 0; u < kKeysOfLane; ++u) {
        own.keys[u] = own.values[u] = EightElements{};
        if (!reads || position + u >= item.end) continue;
        own.keys[u] = *reinterpret_cast<const EightElements*>(args.keys + from + u * key_stride);
        own.values[u] = *reinterpret_cast<const EightElements*>(args.values + from + u * key_stride);
      }
      QUARTET_UNROLL
      for (int u = 0; u < kKeysOfLane; ++u) {
        float key[8];
        Widen(own.keys[u], key);
        QUARTET_UNROLL
        for (int r = 0; r < kRows; ++r) {
          float score = 0;
          QUARTET_UNROLL
          for (int k = 0; k < 8; ++k) score += own.q[r][k] * key[k];
          own.scores[r][u] = score;
        }
      }
    });
    QUARTET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUARTET_UNROLL
      for (int u = 0; u < kKeysOfLane; ++u) {
        warp.template Reduce<1, kLanes>([&](int lane) -> float& { return state(lane).scores[r][u]; }, SumOf());
      }
    }
    warp.ForEachLane([&](int lane) {
      RowsOfLane<kRows>& own = state(lane);
      const int position = first + lane / kLanes * kKeysOfLane;
      QUARTET_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float most = own.largest[r];
        QUARTET_UNROLL
        for (int u = 0; u < kKeysOfLane; ++u) {
          const bool seen = position + u < item.end && position + u <= own.last[r];
          own.scores[r][u] = seen ? own.scores[r][u] : -INFINITY;
          most = fmaxf(most, own.scores[r][u]);
        }
        const float rescale = Rescaled(own.largest[r], most);
        own.largest[r] = most;
        own.total[r] *= rescale;
        QUARTET_UNROLL
        for (int k = 0; k < 8; ++k) own.sums[r][k] *= rescale;
        QUARTET_UNROLL
        for (int u = 0; u < kKeysOfLane; ++u) {
          own.scores[r][u] = Rescaled(own.scores[r][u], most);
          own.total[r] += own.scores[r][u];
        }
      }
      QUARTET_UNROLL
      for (int u = 0; u < kKeysOfLane; ++u) {
        float value[8];
        Widen(own.values[u], value);
        QUARTET_UNROLL
        for (int r = 0; r < kRows; ++r) {
          QUARTET_UNROLL
          for (int k = 0; k < 8; ++k) own.sums[r][k] += own.scores[r][u] * value[k];
        }
      }
    });
  }
  QUARTET_UNROLL
  for (int r = 0; r < kRows; ++r) {
    typename Warp::template PerLane<float> most;
    warp.ForEachLane([&](int lane) { most(lane) = state(lane).largest[r]; });
    warp.template Reduce<kLanes, kLanesOfWarp>([&](int lane) -> float& { return most(lane); }, MaxOf());
    warp.ForEachLane([&](int lane) {
      RowsOfLane<kRows>& own = state(lane);
      const float rescale = Rescaled(own.largest[r], most(lane));
      own.total[r] *= rescale;
      QUARTET_UNROLL
      for (int k = 0; k < 8; ++k) own.sums[r][k] *= rescale;
    });
    warp.template Reduce<kLanes, kLanesOfWarp>([&](int lane) -> float& { return state(lane).total[r]; }, SumOf());
    QUARTET_UNROLL
    for (int k = 0; k < 8; ++k) {
      warp.template Reduce<kLanes, kLanesOfWarp>([&](int lane) -> float& { return state(lane).sums[r][k]; }, SumOf());
    }
    float* const at = found + (w * kRows + r) * FoundRow(kLanes);
    warp.ForEachLane([&](int lane) {
      if (lane >= kLanes) return;
      QUARTET_UNROLL
      for (int k = 0; k < 8; ++k) at[lane * 8 + k] = state(lane).sums[r][k];
      if (lane != 0) return;
      at[kLanes * 8] = most(lane);
      at[kLanes * 8 + 1] = state(lane).total[r];
    });
  }
}

// Merges what all warps have found of the same rows. `group` as for AttendItem.
template <int kRows, int kLanes, typename Group>
QUARTET_DEVICE void MergeWarps(Group& group, const PagedKernelArgs& args, const AttentionItem& item, int kv_head,
                               int first_row, const float* found) {
  const int G = args.heads / args.kv_heads, d = args.head_dim;
  const int rows = item.tokens * G - first_row < kRows ? item.tokens * G - first_row : kRows;
  const int64_t part_row = (static_cast<int64_t>(item.part) * args.kv_heads + kv_head) * kNarrowRows;
  group.ForEach(rows * d, [&](int i) {
    const int r = i / d, c = i % d, row = first_row + r;
    const auto of_warp = [&](int w) { return found + (w * kRows + r) * FoundRow(kLanes); };
    float most = -INFINITY, sum = 0, total = 0;
    for (int w = 0; w < kRowWarps; ++w) most = fmaxf(most, of_warp(w)[kLanes * 8]);
    for (int w = 0; w < kRowWarps; ++w) {
      const float rescale = Rescaled(of_warp(w)[kLanes * 8], most);
      sum += rescale * of_warp(w)[c];
      total += rescale * of_warp(w)[kLanes * 8 + 1];
    }
    if (item.part < 0) {
      args.out[(static_cast<int64_t>(item.row + row / G) * args.heads + kv_head * G + row % G) * d + c] =
          Bf16OfFloat(sum / total);
      return;
    }
    args.part_sums[(part_row + row) * d + c] = sum;
    if (c == 0) {
      args.part_scores[(part_row + row) * 2] = most;
      args.part_scores[(part_row + row) * 2 + 1] = total;
    }
  });
}

// Merges the parts of `merge` for `kv_head`.
template <typename Group>
QUARTET_DEVICE void MergeParts(Group& group, const PagedKernelArgs& args, const AttentionMerge& merge, int kv_head) {
  const int G = args.heads / args.kv_heads, d = args.head_dim;
  group.ForEach(merge.tokens * G * d, [&](int i) {
    const int r = i / d, c = i % d;
    const auto part_row = [&](int part) {
      return (static_cast<int64_t>(merge.part + part) * args.kv_heads + kv_head) * kNarrowRows + r;
    };
    float most = -INFINITY;
    for (int part = 0; part < merge.parts; ++part) most = fmaxf(most, args.part_scores[part_row(part) * 2]);
    float sum = 0, total = 0;
    for (int part = 0; part < merge.parts; ++part) {
      const float rescale = Rescaled(args.part_scores[part_row(part) * 2], most);  // 0 where the row saw no key of it
      sum += rescale * args.part_sums[part_row(part) * d + c];
      total += rescale * args.part_scores[part_row(part) * 2 + 1];
    }
    args.out[(static_cast<int64_t>(merge.row + r / G) * args.heads + kv_head * G + r % G) * d + c] =
        Bf16OfFloat(sum / total);
  });
}

// How narrow items of heads of `head_dim` are computed: run(Count<rows>, Count<lanes>), the numbers that AttendRows
// takes, where no item has more than `most_rows`.
template <int N>
struct CountOf {
  static constexpr int value = N;
};
template <typename Run>
auto ForRows(int most_rows, int head_dim, const Run& run) {
  const auto with_lanes = [&](auto rows) {
    if (head_dim <= 64) return run(rows, CountOf<8>());
    if (head_dim <= 128) return run(rows, CountOf<16>());
    return run(rows, CountOf<32>());
  };
  if (most_rows <= 1) return with_lanes(CountOf<1>());
  if (most_rows <= 2) return with_lanes(CountOf<2>());
  if (most_rows <= 4) return with_lanes(CountOf<4>());
  return with_lanes(CountOf<8>());
}

}  // namespace quartet

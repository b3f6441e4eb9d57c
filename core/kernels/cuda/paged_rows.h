// What an item of core/kernels/cuda/paged_items.h computes, some eights of its rows at a time: each of some warps takes
// keys of its own, sixteen at a time, by products of small matrices that stay in the registers of its lanes. A GPU's
// warps run it (paged_kernel.cu); the same code runs on one thread of the CPU, which is how it is tested.
//
// Lane 4 g + j of a warp holds of these matrices what PTX's mma.m16n8k16 wants of it. The order of what is summed over
// (a head's elements; keys) and of the rows of a result is free as long as both factors agree, and chosen so that each
// lane reads sixteen bytes at once and no element has to move to another lane:
//   scores [16 keys, 8 rows] = keys [16, d] q^T [d, 8]; lane (g, j) reads elements 32 c + 8 j .. + 7 of keys g, g + 8
//     and of row g of q
//   sums [d, 8 rows] += values^T [d, 16 keys] weights [16 keys, 8]; lane (g, j) reads elements 64 b + 8 g .. + 7 of the
//     values of keys 2 j, 2 j + 1, 2 j + 8, 2 j + 9
#pragma once

#include <cmath>
#include <cstdint>

#include "core/kernels/cuda/paged_items.h"

namespace quartet {

constexpr int kLanesOfWarp = 32;
constexpr int kRowWarps = 4;
constexpr int kEight = 8;
// Of a warp. They lie in one block: items begin at multiples of kPartKeys, and blocks hold multiples of this.
constexpr int kKeysAtOnce = 16;

// Where a warp's row lies in what warps have found of heads of `dims`: sums of values, largest score, sum of weights.
QUARTET_HOST_DEVICE constexpr int FoundRow(int dims) { return dims + 2; }
QUARTET_HOST_DEVICE constexpr int FoundFloats(int dims, int eights) {
  return kRowWarps * eights * kEight * FoundRow(dims);
}
// Eights of a wide item's rows that are computed together: as many as the registers of a warp hold.
QUARTET_HOST_DEVICE constexpr int WideEights(int dims) { return dims <= 64 ? 4 : dims <= 128 ? 2 : 1; }

struct MaxOf {
  QUARTET_HOST_DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct SumOf {
  QUARTET_HOST_DEVICE float operator()(float a, float b) const { return a + b; }
};

// By what sums of weights of 2^(score - largest) are multiplied where `most` is the largest score of others as well.
QUARTET_DEVICE inline float Rescaled(float largest, float most) {
  return largest == -INFINITY ? 0 : exp2f(largest - most);
}

// The lower, or the upper halves of two words as one.
QUARTET_DEVICE inline uint32_t LowerHalves(uint32_t a, uint32_t b) { return (a & 0xffffu) | b << 16; }
QUARTET_DEVICE inline uint32_t UpperHalves(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000u); }

// Lane (g, j)'s share of eight rows, for heads of at most kDims elements.
template <int kDims>
struct EightOfLane {
  EightElements q[kDims / 32];  // of row g
  float sums[kDims / 16][4];    // elements 8 g + 2 t of row 2 j and of row 2 j + 1; elements 8 g + 2 t + 1 of both
  float largest[2];             // score, of rows 2 j and 2 j + 1
  float total[2];               // of their weights, 2^(score - largest), of this lane's keys
  int last[2];                  // position that the row sees
  float scores[4];              // then weights: of key g in both rows; of key g + 8
  float most[2];
  uint32_t weights[2];  // of row g: for keys 2 j, 2 j + 1; for keys 2 j + 8, 2 j + 9
};
template <int kDims, int kEights>
struct RowsOfLane {
  EightOfLane<kDims> eights[kEights];
  EightElements keys[2][kDims / 32], values[4][kDims / 64];
};

// The part of warp `w` in rows [first_row, first_row + 8 * kEights) of `item`, for heads of at most kDims elements:
// writes its place of `found`, FoundFloats(kDims, kEights). `warp`:
//   PerLane<T>               one T a lane: state(lane)
//   ForEachLane(f)           f(lane)
//   Reduce<from, to>(f, op)  f(lane), a float&, becomes op of it in all lanes whose numbers differ in bits from .. to /
//   2 Multiply(c, a, b)        mma.m16n8k16 of bf16, added to fp32; c(lane) is a float*, a(lane, i) and b(lane, i)
//   words Transpose(f)             f(lane), a uint32_t&, becomes movmatrix.m8n8.trans of it
template <int kDims, int kEights, typename Warp>
QUARTET_DEVICE void AttendRows(Warp& warp, const PagedKernelArgs& args, const AttentionItem& item, int kv_head,
                               int first_row, int w, float* found) {
  const int G = args.heads / args.kv_heads, d = args.head_dim, used_rows = item.tokens * G;
  const int64_t key_stride = static_cast<int64_t>(args.kv_heads) * d;
  const float scale = 1.44269504f / sqrtf(static_cast<float>(d));  // scores are powers of two
  typename Warp::template PerLane<RowsOfLane<kDims, kEights>> state;
  warp.ForEachLane([&](int lane) {
    const int g = lane / 4, j = lane % 4;
    QUARTET_UNROLL
    for (int e = 0; e < kEights; ++e) {
      EightOfLane<kDims>& own = state(lane).eights[e];
      const int row = first_row + kEight * e + g;
      const uint16_t* const q = args.q + (item.row + row / G) * args.q_stride + (kv_head * G + row % G) * d;
      QUARTET_UNROLL
      for (int c = 0; c < kDims / 32; ++c) {
        const int first = 32 * c + 8 * j;
        own.q[c] = {};
        if (row < used_rows && first < d) own.q[c] = *reinterpret_cast<const EightElements*>(q + first);
      }
      QUARTET_UNROLL
      for (int t = 0; t < kDims / 16; ++t) {
        QUARTET_UNROLL
        for (int i = 0; i < 4; ++i) own.sums[t][i] = 0;
      }
      QUARTET_UNROLL
      for (int r = 0; r < 2; ++r) {
        own.largest[r] = -INFINITY;
        own.total[r] = 0;
        own.last[r] = item.position + (first_row + kEight * e + 2 * j + r) / G;
      }
    }
  });
  for (int first = item.begin + w * kKeysAtOnce; first < item.end; first += kRowWarps * kKeysAtOnce) {
    const auto at = static_cast<uint32_t>(first), S = static_cast<uint32_t>(args.block_size);
    const int64_t slot = static_cast<int64_t>(args.tables[item.table + at / S]) * S + at % S;
    const int64_t begin = slot * key_stride + kv_head * d;
    const int count = item.end - first;
    warp.ForEachLane([&](int lane) {
      RowsOfLane<kDims, kEights>& own = state(lane);
      const int g = lane / 4, j = lane % 4;
      QUARTET_UNROLL
      for (int k = 0; k < 2; ++k) {
        const int key = g + 8 * k;
        QUARTET_UNROLL
        for (int c = 0; c < kDims / 32; ++c) {
          const int element = 32 * c + 8 * j;
          own.keys[k][c] = {};
          if (key >= count || element >= d) continue;
          own.keys[k][c] = *reinterpret_cast<const EightElements*>(args.keys + begin + key * key_stride + element);
        }
      }
      QUARTET_UNROLL
      for (int k = 0; k < 4; ++k) {
        const int key = 2 * j + k % 2 + 8 * (k / 2);
        QUARTET_UNROLL
        for (int b = 0; b < kDims / 64; ++b) {
          const int element = 64 * b + 8 * g;
          own.values[k][b] = {};
          if (key >= count || element >= d) continue;
          own.values[k][b] = *reinterpret_cast<const EightElements*>(args.values + begin + key * key_stride + element);
        }
      }
    });
    QUARTET_UNROLL
    for (int e = 0; e < kEights; ++e) {
      const auto own_of = [&state, e](int lane) -> EightOfLane<kDims>& { return state(lane).eights[e]; };
      warp.ForEachLane([&](int lane) {
        QUARTET_UNROLL
        for (int i = 0; i < 4; ++i) own_of(lane).scores[i] = 0;
      });
      QUARTET_UNROLL
      for (int c = 0; c < kDims / 32; ++c) {
        QUARTET_UNROLL
        for (int h = 0; h < 2; ++h) {
          warp.Multiply([&](int lane) { return own_of(lane).scores; },
                        [&](int lane, int i) { return state(lane).keys[i % 2][c].words[2 * h + i / 2]; },
                        [&](int lane, int i) { return own_of(lane).q[c].words[2 * h + i]; });
        }
      }
      warp.ForEachLane([&](int lane) {
        EightOfLane<kDims>& own = own_of(lane);
        QUARTET_UNROLL
        for (int r = 0; r < 2; ++r) own.most[r] = own.largest[r];
        QUARTET_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int key = lane / 4 + 8 * (i / 2);
          const bool seen = key < count && first + key <= own.last[i % 2];
          own.scores[i] = seen ? own.scores[i] * scale : -INFINITY;
          own.most[i % 2] = fmaxf(own.most[i % 2], own.scores[i]);
        }
      });
      QUARTET_UNROLL
      for (int r = 0; r < 2; ++r) {
        warp.template Reduce<4, kLanesOfWarp>([&](int lane) -> float& { return own_of(lane).most[r]; }, MaxOf());
      }
      warp.ForEachLane([&](int lane) {
        EightOfLane<kDims>& own = own_of(lane);
        float rescale[2];
        QUARTET_UNROLL
        for (int r = 0; r < 2; ++r) {
          rescale[r] = Rescaled(own.largest[r], own.most[r]);
          own.largest[r] = own.most[r];
          own.total[r] *= rescale[r];
        }
        QUARTET_UNROLL
        for (int k = 0; k < 2; ++k) {
          uint16_t rounded[2];
          QUARTET_UNROLL
          for (int r = 0; r < 2; ++r) {
            rounded[r] = Bf16OfFloat(Rescaled(own.scores[2 * k + r], own.most[r]));
            own.total[r] += FloatOfBf16(rounded[r]);  // what the values are multiplied with
          }
          own.weights[k] = LowerHalves(rounded[0], rounded[1]);
        }
        QUARTET_UNROLL
        for (int t = 0; t < kDims / 16; ++t) {
          QUARTET_UNROLL
          for (int i = 0; i < 4; ++i) own.sums[t][i] *= rescale[i % 2];
        }
      });
      QUARTET_UNROLL
      for (int k = 0; k < 2; ++k) warp.Transpose([&](int lane) -> uint32_t& { return own_of(lane).weights[k]; });
      QUARTET_UNROLL
      for (int t = 0; t < kDims / 16; ++t) {
        warp.Multiply([&](int lane) { return own_of(lane).sums[t]; },
                      [&](int lane, int i) {
                        const auto& values = state(lane).values;
                        const uint32_t a = values[i / 2 * 2][t / 4].words[t % 4],
                                       b = values[i / 2 * 2 + 1][t / 4].words[t % 4];
                        return i % 2 == 0 ? LowerHalves(a, b) : UpperHalves(a, b);
                      },
                      [&](int lane, int i) { return own_of(lane).weights[i]; });
      }
    }
  }
  QUARTET_UNROLL
  for (int e = 0; e < kEights; ++e) {
    QUARTET_UNROLL
    for (int r = 0; r < 2; ++r) {
      warp.template Reduce<4, kLanesOfWarp>([&](int lane) -> float& { return state(lane).eights[e].total[r]; },
                                            SumOf());
    }
    warp.ForEachLane([&](int lane) {
      const EightOfLane<kDims>& own = state(lane).eights[e];
      const int g = lane / 4, j = lane % 4;
      QUARTET_UNROLL
      for (int r = 0; r < 2; ++r) {
        float* const to = found + ((w * kEights + e) * kEight + 2 * j + r) * FoundRow(kDims);
        QUARTET_UNROLL
        for (int t = 0; t < kDims / 16; ++t) {
          to[64 * (t / 4) + 8 * g + 2 * (t % 4)] = own.sums[t][r];
          to[64 * (t / 4) + 8 * g + 2 * (t % 4) + 1] = own.sums[t][2 + r];
        }
        if (g != 0) continue;
        to[kDims] = own.largest[r];
        to[kDims + 1] = own.total[r];
      }
    });
  }
}

// Merges what all warps have found of the same rows. group.ForEach(n, f): f(i) for i in [0, n), in any order.
template <int kDims, int kEights, typename Group>
QUARTET_DEVICE void MergeWarps(Group& group, const PagedKernelArgs& args, const AttentionItem& item, int kv_head,
                               int first_row, const float* found) {
  const int G = args.heads / args.kv_heads, d = args.head_dim, left = item.tokens * G - first_row;
  const int64_t part_row = (static_cast<int64_t>(item.part) * args.kv_heads + kv_head) * G;
  constexpr int kRows = kEights * kEight;
  group.ForEach((left < kRows ? left : kRows) * d, [&](int i) {
    const int r = i / d, c = i % d, row = first_row + r;
    const auto of_warp = [&](int w) { return found + (w * kRows + r) * FoundRow(kDims); };
    float most = -INFINITY, sum = 0, total = 0;
    for (int w = 0; w < kRowWarps; ++w) most = fmaxf(most, of_warp(w)[kDims]);
    for (int w = 0; w < kRowWarps; ++w) {
      const float rescale = Rescaled(of_warp(w)[kDims], most);
      sum += rescale * of_warp(w)[c];
      total += rescale * of_warp(w)[kDims + 1];
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
      return (static_cast<int64_t>(merge.part + part) * args.kv_heads + kv_head) * G + r;
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

// run(Dims<kDims>()) with the least kDims that heads of `head_dim` fit.
template <int N>
struct Dims {
  static constexpr int value = N;
};
template <typename Run>
auto ForDims(int head_dim, const Run& run) {
  if (head_dim <= 64) return run(Dims<64>());
  if (head_dim <= 128) return run(Dims<128>());
  return run(Dims<kMostHeadDim>());
}

}  // namespace quartet

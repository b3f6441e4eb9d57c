#include <algorithm>
#include <cstring>
#include <utility>

#include "core/hardware/simd.h"
#include "core/kernels/cpu/bf16_tiles.h"

namespace quartet {
namespace {

// Half a panel.
using simd::F8;
using simd::U8;

enum class Place { kEven, kOdd };

// Of pairs of bf16, the elements at even or at odd places.
template <Place place>
QUARTET_SIMD_INLINE F8 Elements(const U8& pairs) {
  const U8 bits = place == Place::kEven ? pairs << 16 : pairs & 0xFFFF0000u;
  F8 value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The sums of one row and panel, to columns [n, n + 16) of row m, of which `count` exist.
QUARTET_SIMD_INLINE void StoreSums(const Bf16Gemm& gemm, int64_t m, int64_t n, int64_t count, const F8& left,
                                   const F8& right) {
  simd::F16 sums;
  std::memcpy(&sums, &left, sizeof(left));
  std::memcpy(reinterpret_cast<char*>(&sums) + sizeof(left), &right, sizeof(right));
  if (gemm.bias != nullptr) sums += simd::LoadSome(gemm.bias + n, count);
  const int64_t place = m * gemm.c_stride + n;
  if (gemm.c_fp32 != nullptr) return simd::StoreSome(gemm.c_fp32 + place, sums, count);
  if (gemm.residual != nullptr) {
    sums = simd::RoundedTo<uint16_t>(sums) + simd::LoadSome(gemm.residual + place, count);
  }
  simd::StoreSome(gemm.c_bf16 + place, sums, count);
}

// Adds to the sums of R rows and P panels the products of one k: rows[r * stride] by the elements at `place` of the
// pairs of each panel, which are `panel_numel` apart.
template <Place place, int R, int P>
QUARTET_SIMD_INLINE void AddProducts(const float* rows, int64_t stride, const uint16_t* panels, int64_t panel_numel,
                                     F8 (&sums)[R][P][2]) {
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    U8 left, right;
    std::memcpy(&left, panels + p * panel_numel, sizeof(left));
    std::memcpy(&right, panels + p * panel_numel + kPanelRows, sizeof(right));
    const F8 b_left = Elements<place>(left), b_right = Elements<place>(right);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F8 a = rows[r * stride] - F8{};
      sums[r][p][0] += a * b_left;
      sums[r][p][1] += a * b_right;
    }
  }
}

// A sum takes the product of k, then that of k + 1.
template <int R, int P>
QUARTET_SIMD_CLONES void Tile(const Bf16Gemm& gemm, int64_t m, const void* a, int64_t stride, const uint16_t* panels,
                              int64_t n, const NextPanels& next) {
  const auto* rows = static_cast<const float*>(a);
  F8 sums[R][P][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) sums[r][p][0] = sums[r][p][1] = F8{};
  }
  const int64_t panel_numel = PanelNumel(gemm.K), steps = gemm.K / 2;
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) simd::PrefetchToSecondCache(next.from + p * panel_numel + step * next.step_numel);
    const uint16_t* pairs = panels + step * kStepNumel;
    AddProducts<Place::kEven>(rows + 2 * step, stride, pairs, panel_numel, sums);
    AddProducts<Place::kOdd>(rows + 2 * step + 1, stride, pairs, panel_numel, sums);
  }
  if (gemm.K % 2 != 0) {
    AddProducts<Place::kEven>(rows + 2 * steps, stride, panels + steps * kStepNumel, panel_numel, sums);
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      StoreSums(gemm, m + r, n + p * kPanelRows, gemm.N - n - p * kPanelRows, sums[r][p][0], sums[r][p][1]);
    }
  }
}

// So many that their sums, a panel's elements and a row's element fill 16 registers of eight floats.
constexpr int kMostRows = 6;
constexpr int kPanelsForRows[kMostRows + 1] = {0, 4, 3, 2, 1, 1, 1};

template <int R, int... P>
void SetTilesOfRows(Bf16Tiles* tiles, std::integer_sequence<int, P...>) {
  ((tiles->tile[R - 1][P] = &Tile<R, std::min(P + 1, kPanelsForRows[R])>), ...);
}
template <int... R>
void SetTiles(Bf16Tiles* tiles, std::integer_sequence<int, R...>) {
  (SetTilesOfRows<R + 1>(tiles, std::make_integer_sequence<int, kMostTilePanels>()), ...);
}

// A pair of each row stands in one lane. Some pairs of all rows at a time, so that a panel's lines are written whole.
void PackPanelPairs(const uint16_t* rows, int64_t count, int64_t stride, int64_t K, uint16_t* panel) {
  constexpr int64_t kPairs = 16;
  const int64_t whole = K / 2;
  if (count < kPanelRows || K % 2 != 0) std::fill_n(panel, PanelNumel(K), uint16_t{0});
  for (int64_t begin = 0; begin < whole; begin += kPairs) {
    const int64_t end = std::min(whole, begin + kPairs);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(panel + i * kStepNumel + 2 * r, rows + r * stride + 2 * i, 2 * sizeof(uint16_t));
      }
    }
  }
  if (K % 2 == 0) return;
  for (int64_t r = 0; r < count; ++r) panel[whole * kStepNumel + 2 * r] = rows[r * stride + K - 1];
}

}  // namespace

const Bf16Tiles& FloatBf16Tiles() {
  static const Bf16Tiles tiles = [] {
    Bf16Tiles all = {.name = "fp32",
                     .reads_floats = true,
                     .most_rows = kMostRows,
                     .panels_for_rows = kPanelsForRows,
                     .pack_panel = &PackPanelPairs};
    SetTiles(&all, std::make_integer_sequence<int, kMostRows>());
    return all;
  }();
  return tiles;
}

}  // namespace quartet

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/hardware/simd.h"
#include "core/kernels/cpu/bf16_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
QUARTET_SIMD_INLINE void StoreSums(const Bf16Gemm& gemm, int64_t m, int64_t n, int64_t count, const void* of) {
  simd::F16 sums;
  std::memcpy(&sums, of, sizeof(sums));
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
      StoreSums(gemm, m + r, n + p * kPanelRows, gemm.N - n - p * kPanelRows, &sums[r][p]);
    }
  }
}

// So many that their sums, a panel's elements and a row's element fill 16 registers of eight floats.
struct Narrow {
  static constexpr int kMostRows = 6;
  static constexpr int kPanelsForRows[kMostTileRows + 1] = {0, 4, 3, 2, 1, 1, 1};
  template <int R, int P>
  static constexpr Bf16Tile kTile = &Tile<R, P>;
};

#if defined(__x86_64__)

#define QUARTET_WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

// Adds factor * elements to the sums, rounded once. Written out, as compilers spread the factors of all rows over
// registers first, which then are too few for the sums.
QUARTET_WIDE __attribute__((always_inline)) inline void AddProduct(const float& factor, const __m512& elements,
                                                                   __m512* sums) {
  asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(*sums) : "v"(elements), "m"(factor));
}

// One k of all rows and panels.
template <Place place, int R, int P>
QUARTET_WIDE __attribute__((always_inline)) inline void AddProducts(const float* rows, int64_t stride,
                                                                    const uint16_t* panels, int64_t panel_numel,
                                                                    __m512 (&sums)[R][P]) {
  __m512 b[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    const __m512i pairs = _mm512_loadu_si512(panels + p * panel_numel);
    b[p] = _mm512_castsi512_ps(place == Place::kEven ? _mm512_slli_epi32(pairs, 16)
                                                     : _mm512_and_si512(pairs, _mm512_set1_epi32(0xFFFF0000)));
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) AddProduct(rows[r * stride], b[p], &sums[r][p]);
  }
}

// As Tile, with the same bits: each product is added with one rounding there, too.
template <int R, int P>
QUARTET_WIDE void WideTile(const Bf16Gemm& gemm, int64_t m, const void* a, int64_t stride, const uint16_t* panels,
                           int64_t n, const NextPanels& next) {
  const auto* rows = static_cast<const float*>(a);
  __m512 sums[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sums[r][p] = _mm512_setzero_ps();
  }
  const int64_t panel_numel = PanelNumel(gemm.K), steps = gemm.K / 2;
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) simd::PrefetchToSecondCache(next.from + p * panel_numel + step * next.step_numel);
    const uint16_t* pairs = panels + step * kStepNumel;
    AddProducts<Place::kEven>(rows + 2 * step, stride, pairs, panel_numel, sums);
    AddProducts<Place::kOdd>(rows + 2 * step + 1, stride, pairs, panel_numel, sums);
  }
  if (gemm.K % 2 != 0) {
    AddProducts<Place::kEven>(rows + 2 * steps, stride, panels + steps * kStepNumel, panel_numel, sums);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const __m512 sum = sums[r][p];
      StoreSums(gemm, m + r, n + p * kPanelRows, gemm.N - n - p * kPanelRows, &sum);
    }
  }
}

// Likewise of 32 registers of sixteen floats.
struct Wide {
  static constexpr int kMostRows = 14;
  static constexpr int kPanelsForRows[kMostTileRows + 1] = {0, 8, 8, 7, 6, 4, 4, 3, 3, 3, 2, 2, 2, 2, 2};
  template <int R, int P>
  static constexpr Bf16Tile kTile = &WideTile<R, P>;
};

bool HasWide() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#else

using Wide = Narrow;
bool HasWide() { return false; }

#endif

template <typename Width, int R, int... P>
void SetTilesOfRows(Bf16Tiles* tiles, std::integer_sequence<int, P...>) {
  ((tiles->tile[R - 1][P] = Width::template kTile<R, std::min(P + 1, Width::kPanelsForRows[R])>), ...);
}
template <typename Width, int... R>
void SetTiles(Bf16Tiles* tiles, std::integer_sequence<int, R...>) {
  (SetTilesOfRows<Width, R + 1>(tiles, std::make_integer_sequence<int, kMostTilePanels>()), ...);
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

template <typename Width>
Bf16Tiles TilesOf() {
  Bf16Tiles tiles = {.name = "fp32",
                     .reads_floats = true,
                     .most_rows = Width::kMostRows,
                     .panels_for_rows = Width::kPanelsForRows,
                     .pack_panel = &PackPanelPairs};
  SetTiles<Width>(&tiles, std::make_integer_sequence<int, Width::kMostRows>());
  return tiles;
}

}  // namespace

const Bf16Tiles& FloatBf16Tiles() {
  static const Bf16Tiles tiles = HasWide() ? TilesOf<Wide>() : TilesOf<Narrow>();
  return tiles;
}

}  // namespace quartet

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/hardware/simd.h"
#include "core/kernels/cpu/products/gemm_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quartet {
namespace {

// Half a panel.
using simd::F8;
using simd::U8;

// Of a step, for half of a panel's rows: the elements of its first or second k.
template <int which>
QUARTET_SIMD_INLINE F8 Inputs(const uint16_t* pairs) {
  U8 bits;
  std::memcpy(&bits, pairs, sizeof(bits));
  bits = which == 0 ? bits << 16 : bits & 0xFFFF0000u;
  F8 value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
template <int which>
QUARTET_SIMD_INLINE F8 Inputs(const float* elements) {
  F8 value;
  std::memcpy(&value, elements, sizeof(value));
  return value;
}

// The sums of one row and panel, to columns [n, n + 16) of row m, of which `count` exist.
template <typename Element>
QUARTET_SIMD_INLINE void StoreSums(const Gemm<Element>& gemm, int64_t m, int64_t n, int64_t count, const void* of) {
  simd::F16 sums;
  std::memcpy(&sums, of, sizeof(sums));
  if (gemm.bias != nullptr) sums += simd::LoadSome(gemm.bias + n, count);
  const int64_t place = m * gemm.c_stride + n;
  if (gemm.c_fp32 != nullptr) return simd::StoreSome(gemm.c_fp32 + place, sums, count);
  if (gemm.residual != nullptr) {
    sums = simd::RoundedTo<Element>(sums) + simd::LoadSome(gemm.residual + place, count);
  }
  simd::StoreSome(gemm.c + place, sums, count);
}

// What the sums of StoreSums begin with.
template <typename Element>
QUARTET_SIMD_INLINE simd::F16 FirstSums(const Gemm<Element>& gemm, int64_t m, int64_t n, int64_t count) {
  return gemm.first_sums == nullptr ? simd::F16{} : simd::LoadSome(gemm.first_sums + m * gemm.first_stride + n, count);
}

// Adds to the sums of R rows and P panels the products of one k of a step: rows[r * stride] by the elements of each
// panel, which are `panel_numel` apart.
template <int which, typename Element, int R, int P>
QUARTET_SIMD_INLINE void AddProducts(const float* rows, int64_t stride, const Element* panels, int64_t panel_numel,
                                     F8 (&sums)[R][P][2]) {
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const F8 b_left = Inputs<which>(panels + p * panel_numel);
    const F8 b_right = Inputs<which>(panels + p * panel_numel + kStepNumel<Element> / 2);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F8 a = rows[r * stride] - F8{};
      sums[r][p][0] += a * b_left;
      sums[r][p][1] += a * b_right;
    }
  }
}

// A sum takes the product of k, then that of k + 1.
template <typename Element, int R, int P>
QUARTET_SIMD_EIGHT_CLONES void Tile(const Gemm<Element>& gemm, int64_t m, const void* a, int64_t stride,
                                    const Element* panels, int64_t n, const NextPanels<Element>& next) {
  const auto* rows = static_cast<const float*>(a);
  F8 sums[R][P][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const simd::F16 first = FirstSums(gemm, m + r, n + p * kPanelRows, gemm.N - n - p * kPanelRows);
      std::memcpy(&sums[r][p], &first, sizeof(first));
    }
  }
  constexpr int64_t kInputs = kStepInputs<Element>;
  const int64_t panel_numel = PanelStride(gemm), steps = gemm.K / kInputs;
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) simd::PrefetchToSecondCache(next.from + p * panel_numel + step * next.step_numel);
    const Element* taken = panels + step * kStepNumel<Element>;
    AddProducts<0>(rows + kInputs * step, stride, taken, panel_numel, sums);
    if constexpr (kInputs == 2) AddProducts<1>(rows + 2 * step + 1, stride, taken, panel_numel, sums);
  }
  if (gemm.K % kInputs != 0) {
    AddProducts<0>(rows + kInputs * steps, stride, panels + steps * kStepNumel<Element>, panel_numel, sums);
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      StoreSums(gemm, m + r, n + p * kPanelRows, gemm.N - n - p * kPanelRows, &sums[r][p]);
    }
  }
}

constexpr int kMostPanels = 8;
template <typename Element>
using TileFunction = decltype(&Tile<Element, 1, 1>);

// So many that their sums, a panel's elements and a row's element fill 16 registers of eight floats.
struct Narrow {
  static constexpr int kMostRows = 6;
  static constexpr int kPanelsForRows[kMostRows + 1] = {0, 4, 3, 2, 1, 1, 1};
  template <typename Element, int R, int P>
  static constexpr TileFunction<Element> kTile = &Tile<Element, R, P>;
};

#if defined(__x86_64__)

#define QUARTET_WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

// Adds a row's element times those of each panel to the row's sums, rounded once. Written out, as compilers spread the
// elements of all rows over registers first, which then are too few for the sums.
template <int P>
QUARTET_WIDE __attribute__((always_inline)) inline void AddProducts(const float& element, const __m512 (&b)[P],
                                                                    __m512 (&sums)[P]) {
  __m512 a;
  asm volatile("vbroadcastss %1, %0" : "=v"(a) : "m"(element));
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) sums[p] = _mm512_fmadd_ps(a, b[p], sums[p]);
}

// As Inputs, for all of a panel's rows.
template <int which>
QUARTET_WIDE __attribute__((always_inline)) inline __m512 WideInputs(const uint16_t* pairs) {
  const __m512i bits = _mm512_loadu_si512(pairs);
  return _mm512_castsi512_ps(which == 0 ? _mm512_slli_epi32(bits, 16)
                                        : _mm512_and_si512(bits, _mm512_set1_epi32(0xFFFF0000)));
}
template <int which>
QUARTET_WIDE __attribute__((always_inline)) inline __m512 WideInputs(const float* elements) {
  return _mm512_loadu_ps(elements);
}

// One k of all rows and panels.
template <int which, typename Element, int R, int P>
QUARTET_WIDE __attribute__((always_inline)) inline void AddProducts(const float* rows, int64_t stride,
                                                                    const Element* panels, int64_t panel_numel,
                                                                    __m512 (&sums)[R][P]) {
  __m512 b[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) b[p] = WideInputs<which>(panels + p * panel_numel);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) AddProducts(rows[r * stride], b, sums[r]);
}

// As Tile, with the same bits: each product is added with one rounding there, too.
template <typename Element, int R, int P>
QUARTET_WIDE void WideTile(const Gemm<Element>& gemm, int64_t m, const void* a, int64_t stride, const Element* panels,
                           int64_t n, const NextPanels<Element>& next) {
  const auto* rows = static_cast<const float*>(a);
  __m512 sums[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sums[r][p] = _mm512_setzero_ps();
  }
  // Sums come and go by way of memory: loading and storing them calls functions, for which they would be kept there all
  // the time.
  alignas(64) float stored[R][P][kPanelRows];
  if (gemm.first_sums != nullptr) {
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) {
        simd::Store(stored[r][p], FirstSums(gemm, m + r, n + p * kPanelRows, gemm.N - n - p * kPanelRows));
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sums[r][p] = _mm512_load_ps(stored[r][p]);
    }
  }
  constexpr int64_t kInputs = kStepInputs<Element>;
  const int64_t panel_numel = PanelStride(gemm), steps = gemm.K / kInputs;
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) simd::PrefetchToSecondCache(next.from + p * panel_numel + step * next.step_numel);
    const Element* taken = panels + step * kStepNumel<Element>;
    AddProducts<0>(rows + kInputs * step, stride, taken, panel_numel, sums);
    if constexpr (kInputs == 2) AddProducts<1>(rows + 2 * step + 1, stride, taken, panel_numel, sums);
  }
  if (gemm.K % kInputs != 0) {
    AddProducts<0>(rows + kInputs * steps, stride, panels + steps * kStepNumel<Element>, panel_numel, sums);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) _mm512_store_ps(stored[r][p], sums[r][p]);
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) {
      StoreSums(gemm, m + r, n + p * kPanelRows, gemm.N - n - p * kPanelRows, stored[r][p]);
    }
  }
}

// Likewise of 32 registers of sixteen floats.
struct Wide {
  static constexpr int kMostRows = 14;
  static constexpr int kPanelsForRows[kMostRows + 1] = {0, 8, 8, 7, 6, 4, 4, 3, 3, 3, 2, 2, 2, 2, 2};
  template <typename Element, int R, int P>
  static constexpr TileFunction<Element> kTile = &WideTile<Element, R, P>;
};

#else

using Wide = Narrow;

#endif

template <typename Width, typename Element>
using TileTable = std::array<std::array<TileFunction<Element>, kMostPanels>, Width::kMostRows>;
template <typename Width, typename Element, int R, int... P>
constexpr auto TilesOfRows(std::integer_sequence<int, P...>) {
  return std::array<TileFunction<Element>, kMostPanels>{
      Width::template kTile<Element, R, std::min(P + 1, Width::kPanelsForRows[R])>...};
}
template <typename Width, typename Element, int... R>
constexpr auto AllTiles(std::integer_sequence<int, R...>) {
  return TileTable<Width, Element>{
      TilesOfRows<Width, Element, R + 1>(std::make_integer_sequence<int, kMostPanels>())...};
}

template <typename Width, typename Element>
void MultiplyFloats(const Gemm<Element>& gemm, int64_t m, int64_t rows, const void* a, int64_t stride,
                    const Element* panels, int64_t count, int64_t n, const NextPanels<Element>& next) {
  static constexpr auto kTiles = AllTiles<Width, Element>(std::make_integer_sequence<int, Width::kMostRows>());
  kTiles[rows - 1][count - 1](gemm, m, a, stride, panels, n, next);
}

// What a row has for a step stands in one lane. Some steps of all rows at a time, so that a panel's lines are written
// whole.
template <typename Element>
void PackSteps(const Element* rows, int64_t count, int64_t stride, int64_t K, Element* panel) {
  constexpr int64_t kInputs = kStepInputs<Element>, kSteps = 16;
  const int64_t whole = K / kInputs;
  if (count < kPanelRows || K % kInputs != 0) std::fill_n(panel, PanelNumel<Element>(K), Element{0});
  for (int64_t begin = 0; begin < whole; begin += kSteps) {
    const int64_t end = std::min(whole, begin + kSteps);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(panel + i * kStepNumel<Element> + kInputs * r, rows + r * stride + kInputs * i, sizeof(float));
      }
    }
  }
  if (K % kInputs == 0) return;
  for (int64_t r = 0; r < count; ++r) panel[whole * kStepNumel<Element> + kInputs * r] = rows[r * stride + K - 1];
}

// A panel of floats has the bits of one of pairs, whatever they are taken for.
void PackFloats(const float* rows, int64_t count, int64_t stride, int64_t K, float* panel) {
  const GemmTiles<uint16_t>* pairs = Avx512Bf16Tiles();
  if (pairs == nullptr) return PackSteps(rows, count, stride, K, panel);
  pairs->pack_panel(reinterpret_cast<const uint16_t*>(rows), count, 2 * stride, 2 * K,
                    reinterpret_cast<uint16_t*>(panel));
}

template <typename Width, typename Element>
GemmTiles<Element> TilesOf() {
  GemmTiles<Element> tiles = {.name = "fp32",
                              .widens_rows = sizeof(Element) < sizeof(float),
                              .most_rows = Width::kMostRows,
                              .panels_for_rows = Width::kPanelsForRows,
                              .multiply = &MultiplyFloats<Width, Element>};
  if constexpr (std::is_same_v<Element, float>) {
    tiles.pack_panel = &PackFloats;
  } else {
    tiles.pack_panel = &PackSteps<Element>;
  }
  return tiles;
}

}  // namespace

template <typename Element>
const GemmTiles<Element>& FloatTiles() {
  static const GemmTiles<Element> tiles =
      simd::HasSixteenLanes() ? TilesOf<Wide, Element>() : TilesOf<Narrow, Element>();
  return tiles;
}
template const GemmTiles<uint16_t>& FloatTiles();
template const GemmTiles<float>& FloatTiles();

QUARTET_SIMD_CLONES void StoreSumsByFloats(const Gemm<uint16_t>& gemm, int64_t m, int64_t rows, int64_t n,
                                           int64_t panels, const float* sums) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t p = 0; p < panels; ++p, sums += kPanelRows) {
      StoreSums(gemm, m + r, n + p * kPanelRows, gemm.N - n - p * kPanelRows, sums);
    }
  }
}

}  // namespace quartet

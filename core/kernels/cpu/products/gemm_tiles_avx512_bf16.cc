#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/kernels/cpu/products/gemm_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define QUARTET_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define QUARTET_BF16_INLINE QUARTET_BF16 __attribute__((always_inline)) inline
#endif

namespace quartet {

#if defined(__x86_64__)

namespace {

// Transposes 16 x 16 elements of 32 bits, in place.
QUARTET_BF16_INLINE void Transpose(__m512i* v) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {  // within lanes of 128 bits, rows 2 i and 2 i + 1
    t[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // v[4 i + j], lane l: column 4 l + j of rows 4 i to 4 i + 3
    v[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    v[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    v[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    v[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  // Now a transposition of 4 x 4 lanes for each j.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(v[j], v[4 + j], 0x44), b = _mm512_shuffle_i32x4(v[j], v[4 + j], 0xEE);
    const __m512i c = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0x44);
    const __m512i d = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0xEE);
    t[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(a, c, 0xDD);
    t[8 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(b, d, 0xDD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

QUARTET_BF16_INLINE __m512bh LoadPairs(const uint16_t* from) { return (__m512bh)_mm512_loadu_si512(from); }

QUARTET_BF16_INLINE __m512 Widened(__m256i elements) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(elements), 16));
}

QUARTET_BF16_INLINE __mmask16 FirstLanes(int64_t count) {
  return count >= 16 ? __mmask16{0xFFFF} : static_cast<__mmask16>((1u << count) - 1);
}

// Sums that have been taken to their end: to columns [n, n + 16) of row m, of which `count` exist.
QUARTET_BF16_INLINE void StoreSums(const Gemm<uint16_t>& gemm, int64_t m, int64_t n, int64_t count, __m512 sums) {
  const __mmask16 mask = FirstLanes(count);
  if (gemm.bias != nullptr) {
    sums = _mm512_add_ps(sums, Widened(_mm256_maskz_loadu_epi16(mask, gemm.bias + n)));
  }
  const int64_t place = m * gemm.c_stride + n;
  if (gemm.c_fp32 != nullptr) {
    _mm512_mask_storeu_ps(gemm.c_fp32 + place, mask, sums);
    return;
  }
  auto rounded = (__m256i)_mm512_cvtneps_pbh(sums);
  if (gemm.residual != nullptr) {
    const __m512 residual = Widened(_mm256_maskz_loadu_epi16(mask, gemm.residual + place));
    rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(Widened(rounded), residual));
  }
  _mm256_mask_storeu_epi16(gemm.c + place, mask, rounded);
}

// Rows [m, m + R), which are at `a`, `stride` apart, by the P panels from `panels` on, which are columns [n, n + 16 P)
// of C.
template <int R, int P>
QUARTET_BF16_INLINE void MultiplyTile(const Gemm<uint16_t>& gemm, int64_t m, const uint16_t* a, int64_t stride,
                                      const uint16_t* panels, int64_t n, const NextPanels<uint16_t>& next) {
  __m512 sums[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sums[r][p] = _mm512_setzero_ps();
  }
  if (gemm.first_sums != nullptr) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float* const first = gemm.first_sums + (m + r) * gemm.first_stride + n;
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        sums[r][p] = _mm512_maskz_loadu_ps(FirstLanes(gemm.N - n - p * kPanelRows), first + p * kPanelRows);
      }
    }
  }
  const int64_t panel_numel = PanelStride(gemm);
  const int64_t steps = gemm.K / 2;
  for (int64_t step = 0; step < steps; ++step) {
    __m512bh b[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      b[p] = LoadPairs(panels + p * panel_numel + step * kStepNumel<uint16_t>);
      _mm_prefetch(next.from + p * panel_numel + step * next.step_numel, _MM_HINT_T1);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, a + r * stride + 2 * step, sizeof(pair));
      const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sums[r][p] = _mm512_dpbf16_ps(sums[r][p], both, b[p]);
    }
  }
  if (gemm.K % 2 != 0) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512bh both = (__m512bh)_mm512_set1_epi32(a[r * stride + gemm.K - 1]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        sums[r][p] =
            _mm512_dpbf16_ps(sums[r][p], both, LoadPairs(panels + p * panel_numel + steps * kStepNumel<uint16_t>));
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) StoreSums(gemm, m + r, n + p * kPanelRows, gemm.N - n - p * kPanelRows, sums[r][p]);
  }
}

// One function a shape keeps the compiler's work small.
template <int R, int P>
QUARTET_BF16 void Tile(const Gemm<uint16_t>& gemm, int64_t m, const void* a, int64_t stride, const uint16_t* panels,
                       int64_t n, const NextPanels<uint16_t>& next) {
  MultiplyTile<R, P>(gemm, m, static_cast<const uint16_t*>(a), stride, panels, n, next);
}

constexpr int kMostRows = 14, kMostPanels = 8;
// So many that their sums, the panels' pairs and a row's pair fill the 32 registers.
constexpr int kPanelsForRows[kMostRows + 1] = {0, 8, 8, 8, 6, 4, 4, 3, 3, 3, 2, 2, 2, 2, 2};

using TileFunction = decltype(&Tile<1, 1>);
template <int R, int... P>
constexpr std::array<TileFunction, kMostPanels> TilesOfRows(std::integer_sequence<int, P...>) {
  return {&Tile<R, std::min(P + 1, kPanelsForRows[R])>...};
}
template <int... R>
constexpr std::array<std::array<TileFunction, kMostPanels>, kMostRows> AllTiles(std::integer_sequence<int, R...>) {
  return {TilesOfRows<R + 1>(std::make_integer_sequence<int, kMostPanels>())...};
}

void MultiplyByPairs(const Gemm<uint16_t>& gemm, int64_t m, int64_t rows, const void* a, int64_t stride,
                     const uint16_t* panels, int64_t count, int64_t n, const NextPanels<uint16_t>& next) {
  static constexpr auto kTiles = AllTiles(std::make_integer_sequence<int, kMostRows>());
  kTiles[rows - 1][count - 1](gemm, m, a, stride, panels, n, next);
}

QUARTET_BF16 void PackPanelPairs(const uint16_t* rows, int64_t count, int64_t stride, int64_t K, uint16_t* panel) {
  for (int64_t k = 0; k < K; k += kStepNumel<uint16_t>) {
    const int64_t numel = std::min(kStepNumel<uint16_t>, K - k);
    const __mmask32 mask = numel >= kStepNumel<uint16_t> ? ~__mmask32{0} : (__mmask32{1} << numel) - 1;
    __m512i v[kPanelRows];
#pragma GCC unroll 16
    for (int r = 0; r < kPanelRows; ++r) {
      v[r] = r < count ? _mm512_maskz_loadu_epi16(mask, rows + r * stride + k) : _mm512_setzero_si512();
    }
    Transpose(v);
    // The rows behind these, if B goes on there, end to end.
#pragma GCC unroll 16
    for (int i = 0; i < kPanelRows; ++i) {
      _mm_prefetch(rows + kPanelRows * (stride + k) + i * kStepNumel<uint16_t>, _MM_HINT_T0);
    }
    const int64_t steps = (numel + 1) / 2;
    for (int64_t i = 0; i < steps; ++i) _mm512_storeu_si512(panel + (k / 2 + i) * kStepNumel<uint16_t>, v[i]);
  }
}

// 32 columns by 32 of k at a time.
QUARTET_BF16 void TransposePairs(const uint16_t* columns, int64_t count, int64_t stride, int64_t K, uint16_t* rows,
                                 int64_t row_stride) {
  constexpr int64_t kColumns = 32;
  for (int64_t first = 0; first < count; first += kColumns) {
    const int64_t taken = std::min(kColumns, count - first);
    const __mmask32 mask = taken == kColumns ? ~__mmask32{0} : (__mmask32{1} << taken) - 1;
    for (int64_t k = 0; k < K; k += kStepNumel<uint16_t>) {
      const auto load = [&](int64_t at) __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) {
        _mm_prefetch(columns + (at + kStepNumel<uint16_t>)*stride + first, _MM_HINT_T0);
        return at < K ? _mm512_maskz_loadu_epi16(mask, columns + at * stride + first) : _mm512_setzero_si512();
      };
      __m512i pairs[2][kPanelRows];  // of columns 8 i to 8 i + 3, and of the four behind them
#pragma GCC unroll 16
      for (int i = 0; i < kPanelRows; ++i) {
        const __m512i even = load(k + 2 * i), odd = load(k + 2 * i + 1);
        pairs[0][i] = _mm512_unpacklo_epi16(even, odd);
        pairs[1][i] = _mm512_unpackhi_epi16(even, odd);
      }
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        Transpose(pairs[half]);
#pragma GCC unroll 16
        for (int i = 0; i < kPanelRows; ++i) {
          const int64_t column = i / 4 * 8 + i % 4 + 4 * half;
          if (column < taken) _mm512_storeu_si512(rows + (first + column) * row_stride + k, pairs[half][i]);
        }
      }
    }
  }
}

}  // namespace

const GemmTiles<uint16_t>* Avx512Bf16Tiles() {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bf16")) {
    return nullptr;
  }
  static constexpr GemmTiles<uint16_t> kTiles = {.name = "avx512_bf16",
                                                 .most_rows = kMostRows,
                                                 .panels_for_rows = kPanelsForRows,
                                                 .multiply = &MultiplyByPairs,
                                                 .pack_panel = &PackPanelPairs,
                                                 .transpose = &TransposePairs};
  return &kTiles;
}

QUARTET_BF16 void StoreSumsByAvx512Bf16(const Gemm<uint16_t>& gemm, int64_t m, int64_t rows, int64_t n, int64_t panels,
                                        const float* sums) {
  const Gemm<uint16_t> to = gemm;  // which no store can change, so that what it asks for is asked once
  if (to.bias == nullptr && to.residual == nullptr && to.c_fp32 == nullptr && panels == 2 &&
      to.N - n >= 2 * kPanelRows) {
    uint16_t* c = to.c + m * to.c_stride + n;
    for (int64_t r = 0; r < rows; ++r, c += to.c_stride, sums += 2 * kPanelRows) {
      const __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + kPanelRows);
      _mm512_storeu_si512(c, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t p = 0; p < panels; ++p, sums += kPanelRows) {
      StoreSums(to, m + r, n + p * kPanelRows, to.N - n - p * kPanelRows, _mm512_loadu_ps(sums));
    }
  }
}

#else

const GemmTiles<uint16_t>* Avx512Bf16Tiles() { return nullptr; }
void StoreSumsByAvx512Bf16(const Gemm<uint16_t>& gemm, int64_t m, int64_t rows, int64_t n, int64_t panels,
                           const float* sums) {
  StoreSumsByFloats(gemm, m, rows, n, panels, sums);
}

#endif

}  // namespace quartet

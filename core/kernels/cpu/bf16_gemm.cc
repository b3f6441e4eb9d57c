#include "core/kernels/cpu/bf16_gemm.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#define QUARTET_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define QUARTET_BF16_INLINE QUARTET_BF16 __attribute__((always_inline)) inline
#endif

namespace quartet {

#if defined(__x86_64__)

namespace {

// The pairs of neighbours in k, one in each 32-bit lane, that one panel has for one step.
constexpr int64_t kStepNumel = kPanelRows * 2;

// What stays in a core's second cache.
constexpr int64_t kCacheBytes = int64_t{512} << 10;

// Panels that are worked on at a time: a part of B that stays there.
int64_t PanelsInCache(int64_t K) {
  return std::max<int64_t>(2, kCacheBytes / (PanelNumel(K) * static_cast<int64_t>(sizeof(uint16_t))) / 2 * 2);
}

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

// Sums that have been taken to their end: to columns [n, n + 16) of row m, of which `count` exist.
QUARTET_BF16_INLINE void StoreSums(const Bf16Gemm& gemm, int64_t m, int64_t n, int64_t count, __m512 sums) {
  const __mmask16 mask = count >= 16 ? __mmask16{0xFFFF} : static_cast<__mmask16>((1u << count) - 1);
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
  _mm256_mask_storeu_epi16(gemm.c_bf16 + place, mask, rounded);
}

// What will be read next of B, as many panels as are worked on. It is brought into the cache meanwhile: of each of them
// `step_numel` elements from `from` on with each step.
struct Next {
  const uint16_t* from;
  int64_t step_numel;
};

// Rows [m, m + R), which are at `a`, `stride` apart, by the P panels from `panels` on, which are columns [n, n + 16 P)
// of C.
template <int R, int P>
QUARTET_BF16_INLINE void MultiplyTile(const Bf16Gemm& gemm, int64_t m, const uint16_t* a, int64_t stride,
                                      const uint16_t* panels, int64_t n, const Next& next) {
  __m512 sums[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sums[r][p] = _mm512_setzero_ps();
  }
  const int64_t panel_numel = PanelNumel(gemm.K);
  const int64_t steps = gemm.K / 2;
  for (int64_t step = 0; step < steps; ++step) {
    __m512bh b[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      b[p] = LoadPairs(panels + p * panel_numel + step * kStepNumel);
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
        sums[r][p] = _mm512_dpbf16_ps(sums[r][p], both, LoadPairs(panels + p * panel_numel + steps * kStepNumel));
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
QUARTET_BF16 void Tile(const Bf16Gemm& gemm, int64_t m, const uint16_t* a, int64_t stride, const uint16_t* panels,
                       int64_t n, const Next& next) {
  MultiplyTile<R, P>(gemm, m, a, stride, panels, n, next);
}

using TileFunction = decltype(&Tile<1, 1>);

// So many rows and panels that their sums, the panels' pairs and a row's pair fill the 32 registers.
constexpr int kMostRows = 14;
constexpr int kMostPanels = 8;
constexpr int kPanelsForRows[kMostRows + 1] = {0, 8, 8, 8, 6, 4, 4, 3, 3, 3, 2, 2, 2, 2, 2};

// The tile of R rows for each number of panels; above the most that there are for R rows, the most.
template <int R, int... P>
constexpr std::array<TileFunction, kMostPanels> TilesOfRows(std::integer_sequence<int, P...>) {
  return {&Tile<R, std::min(P + 1, kPanelsForRows[R])>...};
}
template <int... R>
constexpr std::array<std::array<TileFunction, kMostPanels>, kMostRows> AllTiles(std::integer_sequence<int, R...>) {
  return {TilesOfRows<R + 1>(std::make_integer_sequence<int, kMostPanels>())...};
}
constexpr auto kTiles = AllTiles(std::make_integer_sequence<int, kMostRows>());

struct FreeAligned {
  void operator()(uint16_t* memory) const { std::free(memory); }
};

// Memory of one thread, kept for the next call.
class Scratch {
 public:
  uint16_t* Get(int64_t numel) {
    if (numel_ < numel) {
      memory_.reset(static_cast<uint16_t*>(std::aligned_alloc(64, (numel * sizeof(uint16_t) + 63) / 64 * 64)));
      if (memory_ == nullptr) throw std::bad_alloc();
      numel_ = numel;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<uint16_t, FreeAligned> memory_;
  int64_t numel_ = 0;
};

// Rows whose distance is a multiple of this many bytes would share few places of a core's first cache.
constexpr int64_t kBadStrideBytes = 2048;

int64_t PartsOfRows(int64_t rows) { return (rows + kMostRows - 1) / kMostRows; }
int64_t PanelsOfFewRows(int64_t rows) {
  const int64_t parts = PartsOfRows(rows);
  return kPanelsForRows[(rows + parts - 1) / parts];
}

// Some rows of A.
struct Rows {
  int64_t first, count;
  const uint16_t* a;
  int64_t stride;

  // They are cut into parts that one tile can take, as equal as they can be.
  int64_t parts() const { return PartsOfRows(count); }
  Rows part(int64_t index) const {
    const int64_t begin = count * index / parts(), end = count * (index + 1) / parts();
    return {first + begin, end - begin, a + begin * stride, stride};
  }
};

// The rows themselves, or a copy, which lives until this thread's next one.
Rows WellPlaced(const Bf16Gemm& gemm, const Rows& rows) {
  if (rows.count <= 4 || rows.stride * static_cast<int64_t>(sizeof(uint16_t)) % kBadStrideBytes != 0) return rows;
  thread_local Scratch copies;
  const int64_t stride = gemm.K + kStepNumel;
  uint16_t* copy = copies.Get(rows.count * stride);
  for (int64_t r = 0; r < rows.count; ++r) std::copy_n(rows.a + r * rows.stride, gemm.K, copy + r * stride);
  return {rows.first, rows.count, copy, stride};
}

void MultiplyPart(const Bf16Gemm& gemm, const Rows& part, const uint16_t* panels, int64_t count, int64_t n,
                  const Next& next) {
  kTiles[part.count - 1][count - 1](gemm, part.first, part.a, part.stride, panels, n, next);
}

// `rows` by `count` panels, which are the columns from `n` on and stay in the cache.
void MultiplyPanels(const Bf16Gemm& gemm, const Rows& rows, const uint16_t* panels, int64_t count, int64_t n) {
  const int64_t panel_numel = PanelNumel(gemm.K);
  for (int64_t i = 0; i < rows.parts(); ++i) {
    const Rows part = WellPlaced(gemm, rows.part(i));
    const int64_t most = kPanelsForRows[part.count];
    for (int64_t p = 0; p < count; p += most) {
      const int64_t taken = std::min(most, count - p);
      const Next next = {panels + (p + taken < count ? p + taken : 0) * panel_numel, kStepNumel};
      MultiplyPart(gemm, part, panels + p * panel_numel, taken, n + p * kPanelRows, next);
    }
  }
}

// Likewise for few rows, which stay in the cache while the panels come from memory. Each part of the rows asks for its
// share of the next panels, so that memory is read all the time; `following` are those behind the last.
void MultiplyFewRows(const Bf16Gemm& gemm, const Rows& all, const uint16_t* panels, int64_t count, int64_t n,
                     const uint16_t* following) {
  const Rows rows = WellPlaced(gemm, all);
  const int64_t panel_numel = PanelNumel(gemm.K), parts = rows.parts(), most = PanelsOfFewRows(rows.count);
  const int64_t step_numel = (kStepNumel + parts - 1) / parts, share = gemm.K / 2 * step_numel;
  for (int64_t p = 0; p < count; p += most) {
    const int64_t taken = std::min(most, count - p);
    const uint16_t* next = p + taken < count ? panels + (p + taken) * panel_numel : following;
    for (int64_t i = 0; i < parts; ++i) {
      MultiplyPart(gemm, rows.part(i), panels + p * panel_numel, taken, n + p * kPanelRows,
                   {next + i * share, step_numel});
    }
  }
}

}  // namespace

bool HasBf16Gemm() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
  return has;
}

QUARTET_BF16 void PackPanel(const uint16_t* rows, int64_t count, int64_t stride, int64_t K, uint16_t* panel) {
  for (int64_t k = 0; k < K; k += kStepNumel) {
    const int64_t numel = std::min(kStepNumel, K - k);
    const __mmask32 mask = numel >= kStepNumel ? ~__mmask32{0} : (__mmask32{1} << numel) - 1;
    __m512i v[kPanelRows];
#pragma GCC unroll 16
    for (int r = 0; r < kPanelRows; ++r) {
      v[r] = r < count ? _mm512_maskz_loadu_epi16(mask, rows + r * stride + k) : _mm512_setzero_si512();
    }
    Transpose(v);
    // The rows behind these, if B goes on there, end to end.
#pragma GCC unroll 16
    for (int i = 0; i < kPanelRows; ++i) {
      _mm_prefetch(rows + kPanelRows * (stride + k) + i * kStepNumel, _MM_HINT_T0);
    }
    const int64_t steps = (numel + 1) / 2;
    for (int64_t i = 0; i < steps; ++i) _mm512_storeu_si512(panel + (k / 2 + i) * kStepNumel, v[i]);
  }
}

bool AreFewRows(int64_t rows, int64_t K) { return rows * K * static_cast<int64_t>(sizeof(uint16_t)) <= kCacheBytes; }

int64_t ColumnsOfFewRows(int64_t rows) { return PanelsOfFewRows(rows) * kPanelRows; }

void MultiplyBf16(const Bf16Gemm& gemm, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
                  int64_t next_column) {
  if (row_begin >= row_end) return;
  const int64_t panel_numel = PanelNumel(gemm.K);
  const Rows rows = {row_begin, row_end - row_begin, gemm.a + row_begin * gemm.a_stride, gemm.a_stride};
  if (gemm.b_is_packed && AreFewRows(rows.count, gemm.K)) {
    const auto panel_at = [&](int64_t column) { return gemm.b + column / kPanelRows * panel_numel; };
    const int64_t panels = (column_end - column_begin + kPanelRows - 1) / kPanelRows;
    MultiplyFewRows(gemm, rows, panel_at(column_begin), panels, column_begin, panel_at(next_column));
    return;
  }
  // Panels that are packed to be read once, only until they are read.
  const bool read_once = !gemm.b_is_packed && rows.count <= kMostRows;
  const int64_t most = read_once ? 2 : PanelsInCache(gemm.K);
  for (int64_t n = column_begin; n < column_end; n += most * kPanelRows) {
    const int64_t end = std::min(n + most * kPanelRows, column_end);
    const int64_t panels = (end - n + kPanelRows - 1) / kPanelRows;
    if (gemm.b_is_packed) {
      MultiplyPanels(gemm, rows, gemm.b + n / kPanelRows * panel_numel, panels, n);
      continue;
    }
    thread_local Scratch scratch;
    uint16_t* packed = scratch.Get(panels * panel_numel);
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t first = n + p * kPanelRows;
      PackPanel(gemm.b + first * gemm.K, std::min(kPanelRows, end - first), gemm.K, gemm.K, packed + p * panel_numel);
    }
    MultiplyPanels(gemm, rows, packed, panels, n);
  }
}

#else

bool HasBf16Gemm() { return false; }
void PackPanel(const uint16_t*, int64_t, int64_t, int64_t, uint16_t*) { std::abort(); }
void MultiplyBf16(const Bf16Gemm&, int64_t, int64_t, int64_t, int64_t, int64_t) { std::abort(); }
bool AreFewRows(int64_t, int64_t) { std::abort(); }
int64_t ColumnsOfFewRows(int64_t) { std::abort(); }

#endif

}  // namespace quartet

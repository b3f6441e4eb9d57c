// Products by AMX's tiles: of an input, 32 elements of each row of A are one; a panel's part for them is the other as
// it lies.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/base/division.h"
#include "core/hardware/bf16.h"
#include "core/hardware/simd.h"
#include "core/kernels/cpu/amx.h"
#include "core/kernels/cpu/products/gemm_tiles.h"

namespace quartet {
namespace {

constexpr int kMostRows = 2 * kTileRows;

#if defined(__x86_64__) && defined(__linux__)
bool SystemGivesAmx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;      // of leaf 7, in EDX
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBf16) != 0 && (d & kTile) != 0 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif

QUARTET_SIMD_INLINE float Flushed(float value) {
  return std::abs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
}

// So many that there are tiles for their sums.
constexpr int kPanelsForRows[kMostRows + 1] = {0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4,
                                               2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2};
constexpr int kMostPanels = 4;

template <typename I>
constexpr auto* kStoreSums = &StoreSumsByFloats;
#if defined(__x86_64__) && defined(__linux__)
template <>
constexpr auto* kStoreSums<AmxInstructions> = &StoreSumsByAvx512Bf16;
#endif

// Those of the last inputs, fewer than 32: filled up with zeros.
template <typename I, bool kBothRows, int kPanels>
void AddLastProducts(int64_t rows, const uint16_t* a, int64_t stride, const uint16_t* panels, int64_t panel_numel,
                     int64_t inputs) {
  alignas(64) uint16_t last_a[kMostRows][kTileInputs] = {};
  alignas(64) uint16_t last_panels[kPanels][kTileRows * kTileInputs] = {};
  for (int64_t r = 0; r < rows; ++r) std::memcpy(last_a[r], a + r * stride, inputs * sizeof(uint16_t));
  for (int p = 0; p < kPanels; ++p) {
    std::memcpy(last_panels[p], panels + p * panel_numel, PanelNumel<uint16_t>(inputs) * sizeof(uint16_t));
  }
  AddProducts<I, kBothRows, kPanels>(last_a[0], kTileBytes, last_panels[0], kTileRows * kTileInputs);
}

// The tiles of sums, as a matrix [rows, 16 kPanels] of floats.
template <typename I, bool kBothRows, int kPanels, typename Visit>
QUARTET_SIMD_INLINE void ForSums(float* sums, const Visit& visit) {
  if constexpr (kBothRows) {
    float* const other = sums + kTileRows * kPanels * kPanelRows;
    visit(std::integral_constant<int, 0>(), sums);
    if constexpr (kPanels > 1) visit(std::integral_constant<int, 1>(), sums + kPanelRows);
    visit(std::integral_constant<int, 2>(), other);
    if constexpr (kPanels > 1) visit(std::integral_constant<int, 3>(), other + kPanelRows);
  } else {
    visit(std::integral_constant<int, 0>(), sums);
    if constexpr (kPanels > 1) visit(std::integral_constant<int, 1>(), sums + kPanelRows);
    if constexpr (kPanels > 2) visit(std::integral_constant<int, 2>(), sums + 2 * kPanelRows);
    if constexpr (kPanels > 3) visit(std::integral_constant<int, 3>(), sums + 3 * kPanelRows);
  }
}

// Inputs of a product that are summed up before the others, so that A's rows stay in the first cache.
struct Inputs {
  int64_t begin, end;  // end: K, or a multiple of 32 like begin
  float* partial;      // the sums between them: [rows, 16 kPanels]
  bool has_sums;       // it has those to go on from
};

// Where row m of C has column n, and the bytes from row to row.
std::pair<const char*, int64_t> CAt(const Gemm<uint16_t>& gemm, int64_t m, int64_t n) {
  const int64_t bytes = gemm.c_fp32 != nullptr ? sizeof(float) : sizeof(uint16_t);
  const auto* c =
      gemm.c_fp32 != nullptr ? reinterpret_cast<const char*>(gemm.c_fp32) : reinterpret_cast<const char*>(gemm.c);
  return {c + (m * gemm.c_stride + n) * bytes, gemm.c_stride * bytes};
}

// Rows [m, m + rows) by kPanels panels; `a` and `panels` are those of input 0.
template <typename I, bool kBothRows, int kPanels>
void MultiplyTiles(const Gemm<uint16_t>& gemm, int64_t m, int64_t rows, const uint16_t* a, int64_t stride,
                   const uint16_t* panels, int64_t n, const Inputs& inputs, const NextPanels<uint16_t>& next) {
  constexpr int64_t kSteps = kTileInputs / kStepInputs<uint16_t>, kLineNumel = 32, kSumsBytes = kPanels * kTileBytes;
  ForSums<I, kBothRows, kPanels>(inputs.partial, [&](auto tile, const float* from) {
    if (inputs.has_sums) {
      I::template Load<tile>(from, kSumsBytes);
    } else {
      I::template Zero<tile>();
    }
  });
  const int64_t panel_numel = PanelStride(gemm), stride_bytes = stride * static_cast<int64_t>(sizeof(uint16_t)),
                ahead = kSteps * next.step_numel;
  // C's lines are on their way while its sums are made: two rows a step.
  const bool ends = inputs.end == gemm.K;
  const auto c = ends ? CAt(gemm, m, n) : std::pair<const char*, int64_t>();
  int64_t c_row = ends ? 0 : rows;
  int64_t k = inputs.begin;
  for (; k + kTileInputs <= inputs.end; k += kTileInputs) {
    AddProducts<I, kBothRows, kPanels>(a + k, stride_bytes, panels + k * kPanelRows, panel_numel);
    for (int i = 0; i < 2 && c_row < rows; ++i, ++c_row) __builtin_prefetch(c.first + c_row * c.second, /*rw=*/1);
    const uint16_t* from = next.from + k / kTileInputs * ahead;
    for (int p = 0; p < kPanels; ++p) {
      for (int64_t i = 0; i < ahead; i += kLineNumel) simd::PrefetchToSecondCache(from + p * panel_numel + i);
    }
  }
  if (k < inputs.end) {
    AddLastProducts<I, kBothRows, kPanels>(rows, a + k, stride, panels + k * kPanelRows, panel_numel, inputs.end - k);
  }
  alignas(64) float last[kMostRows * kMostPanels * kPanelRows / 2];
  ForSums<I, kBothRows, kPanels>(ends ? last : inputs.partial,
                                 [](auto tile, float* to) { I::template Store<tile>(to, kSumsBytes); });
  if (ends) kStoreSums<I>(gemm, m, rows, n, kPanels, last);
}

// gemm.first_sums of rows [m, m + rows) and `panels` panels, as a matrix of its own.
void CopyFirstSums(const Gemm<uint16_t>& gemm, int64_t m, int64_t rows, int64_t n, int64_t panels, float* sums) {
  const int64_t columns = panels * kPanelRows, known = std::min(columns, gemm.N - n);
  for (int64_t r = 0; r < rows; ++r, sums += columns) {
    const float* const first = gemm.first_sums + (m + r) * gemm.first_stride + n;
    std::fill(std::copy(first, first + known, sums), sums + columns, 0.0f);
  }
}

// Two tiles of A's rows of so many inputs leave room in the first cache (48 KiB).
constexpr int64_t kMostInputs = 576;

template <typename I>
void Multiply(const Gemm<uint16_t>& gemm, int64_t m, int64_t rows, const void* a, int64_t stride,
              const uint16_t* panels, int64_t count, int64_t n, const NextPanels<uint16_t>& next) {
  using Function = decltype(&MultiplyTiles<I, false, 1>);
  static constexpr Function kFewRows[kMostPanels] = {&MultiplyTiles<I, false, 1>, &MultiplyTiles<I, false, 2>,
                                                     &MultiplyTiles<I, false, 3>, &MultiplyTiles<I, false, 4>};
  static constexpr Function kManyRows[] = {&MultiplyTiles<I, true, 1>, &MultiplyTiles<I, true, 2>};
  ConfigureTiles<I>(ShapesOf(rows));
  const int64_t most = kPanelsForRows[rows], panel_numel = PanelStride(gemm);
  const int64_t parts = count > most ? std::max<int64_t>(1, CeilDivide(gemm.K, kMostInputs)) : 1;
  const int64_t inputs = CeilDivide(gemm.K, parts * kTileInputs) * kTileInputs;
  thread_local std::vector<float> partial;
  partial.resize(std::max<size_t>(partial.size(), rows * count * kPanelRows));
  int64_t begin = 0;
  do {
    for (int64_t p = 0; p < count; p += most) {
      const int64_t taken = std::min(most, count - p);
      float* const sums = partial.data() + p * rows * kPanelRows;
      const bool goes_on = begin == 0 && gemm.first_sums != nullptr;
      if (goes_on) CopyFirstSums(gemm, m, rows, n + p * kPanelRows, taken, sums);
      const auto multiply = rows > kTileRows ? kManyRows[taken - 1] : kFewRows[taken - 1];
      multiply(gemm, m, rows, static_cast<const uint16_t*>(a), stride, panels + p * panel_numel, n + p * kPanelRows,
               {begin, std::min(gemm.K, begin + inputs), sums, goes_on || begin > 0}, next);
    }
    begin += inputs;
  } while (begin < gemm.K);
}

template <typename I>
GemmTiles<uint16_t> TilesOf(std::string_view name, const GemmTiles<uint16_t>& packer) {
  return {.name = name,
          .most_rows = kMostRows,
          .panels_for_rows = kPanelsForRows,
          .walks_panels = true,
          .panels_bytes = int64_t{5} << 18,
          .multiply = &Multiply<I>,
          .pack_panel = packer.pack_panel,
          .transpose = packer.transpose,
          .release = &ReleaseTiles<I>};
}

}  // namespace

QUARTET_SIMD_CLONES void EmulateProducts(int64_t rows, int64_t inputs, const TileBytes& a, const TileBytes& b,
                                         TileBytes* c) {
  for (int64_t m = 0; m < rows; ++m) {
    float sums[2][kTileRows] = {}, added[kTileRows];  // of even and of odd inputs
    for (int64_t k = 0; k < inputs; ++k) {
      uint16_t left_bits;
      std::memcpy(&left_bits, a[m].data() + k * sizeof(left_bits), sizeof(left_bits));
      const float left = Flushed(FromBf16(left_bits));
      uint32_t pairs[kTileRows];
      std::memcpy(pairs, b[k / 2].data(), sizeof(pairs));
      float* const sum = sums[k % 2];
      for (int64_t n = 0; n < kTileRows; ++n) {
        const float right = Flushed(std::bit_cast<float>(k % 2 == 0 ? pairs[n] << 16 : pairs[n] & 0xFFFF0000u));
        sum[n] = Flushed(std::fma(left, right, sum[n]));
      }
    }
    std::memcpy(added, (*c)[m].data(), sizeof(added));
    for (int64_t n = 0; n < kTileRows; ++n) added[n] = Flushed(Flushed(sums[0][n] + sums[1][n]) + added[n]);
    std::memcpy((*c)[m].data(), added, sizeof(added));
  }
}

const GemmTiles<uint16_t>* AmxTiles() {
#if defined(__x86_64__) && defined(__linux__)
  static const GemmTiles<uint16_t>* const tiles = []() -> const GemmTiles<uint16_t>* {
    const GemmTiles<uint16_t>* const pairs = Avx512Bf16Tiles();
    if (pairs == nullptr || !SystemGivesAmx()) return nullptr;
    static const GemmTiles<uint16_t> amx = TilesOf<AmxInstructions>("amx", *pairs);
    return &amx;
  }();
  return tiles;
#else
  return nullptr;
#endif
}

const GemmTiles<uint16_t>& EmulatedAmxTiles() {
  static const GemmTiles<uint16_t> tiles = TilesOf<AmxEmulation>("amx_emulated", FloatTiles<uint16_t>());
  return tiles;
}

}  // namespace quartet

// The matrix registers of AMX: eight tiles of 16 rows of 64 bytes, each a thread's own. LibTorch-free.
//
// A product of tiles is of up to 16 rows of up to 32 numbers in bf16, as they lie in memory, by 16 columns of them, of
// which row k has numbers 2 k and 2 k + 1 of each. Bits: the products of even and of odd numbers are summed apart, each
// from zero in ascending order; the two sums are added, and that to the element of the third tile (TDPBF16PS in Intel's
// manual). Denormal numbers count as zero.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "core/hardware/simd.h"

namespace quartet {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kTileInputs = 32;
inline constexpr int64_t kTileBytes = 64;  // of a row, of every tile

// What LDTILECFG reads.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t zeros[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  bool operator==(const TileShapes&) const = default;
};

#if defined(__x86_64__) && defined(__linux__)

// Compilers know nothing of these registers: volatile statements keep their order.
struct AmxInstructions {
  static void Configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
  static void Release() { asm volatile("tilerelease"); }
  template <int tile>
  QUARTET_SIMD_INLINE static void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(tile));
  }
  template <int tile>
  QUARTET_SIMD_INLINE static void Load(const void* from, int64_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride_bytes), "i"(tile) : "memory");
  }
  // Of what is not read again soon: it leaves the first cache to what is.
  template <int tile>
  QUARTET_SIMD_INLINE static void LoadOnce(const void* from, int64_t stride_bytes) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride_bytes), "i"(tile) : "memory");
  }
  template <int tile>
  QUARTET_SIMD_INLINE static void Store(float* to, int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride_bytes), "i"(tile) : "memory");
  }
  template <int c, int a, int b>
  QUARTET_SIMD_INLINE static void AddProducts() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
};

#endif

using TileBytes = std::array<std::array<uint8_t, kTileBytes>, kTileRows>;

// What AddProducts does to tile c, of whose rows the first `rows` are there, and of A's the first `inputs` numbers.
void EmulateProducts(int64_t rows, int64_t inputs, const TileBytes& a, const TileBytes& b, TileBytes* c);

// The same, whatever the CPU, with the same bits.
struct AmxEmulation {
  struct Tiles {
    TileShapes shapes;
    std::array<TileBytes, 8> rows;
  };
  static Tiles& Mine() {
    thread_local Tiles tiles;
    return tiles;
  }

  static void Configure(const TileShapes& shapes) {
    Mine().shapes = shapes;
    Mine().rows = {};
  }
  static void Release() { Configure({}); }
  template <int tile>
  static void Zero() {
    Mine().rows[tile] = {};
  }
  template <int tile>
  static void Load(const void* from, int64_t stride_bytes) {
    Zero<tile>();
    const TileShapes& shapes = Mine().shapes;
    for (int r = 0; r < shapes.rows[tile]; ++r) {
      std::memcpy(Mine().rows[tile][r].data(), static_cast<const char*>(from) + r * stride_bytes,
                  shapes.row_bytes[tile]);
    }
  }
  template <int tile>
  static void LoadOnce(const void* from, int64_t stride_bytes) {
    Load<tile>(from, stride_bytes);
  }
  template <int tile>
  static void Store(float* to, int64_t stride_bytes) {
    for (int r = 0; r < Mine().shapes.rows[tile]; ++r) {
      std::memcpy(reinterpret_cast<char*>(to) + r * stride_bytes, Mine().rows[tile][r].data(), kTileBytes);
    }
  }
  template <int c, int a, int b>
  static void AddProducts() {
    Tiles& mine = Mine();
    EmulateProducts(mine.shapes.rows[c], mine.shapes.row_bytes[a] / 2, mine.rows[a], mine.rows[b], &mine.rows[c]);
  }
};

// Tiles for up to 32 rows of A. Tiles 0 to 3 hold sums, tile 4 the first 16 rows of A. Of up to 16 rows: all sums are
// theirs, and tiles 5 to 7 hold what they are multiplied by. Of more: tile 5 holds the other rows of A, tiles 2 and 3
// are of their sums, and tiles 6 and 7 hold what all are multiplied by.
inline TileShapes ShapesOf(int64_t rows) {
  TileShapes shapes;
  const auto low = static_cast<uint8_t>(std::min(rows, kTileRows)), high = static_cast<uint8_t>(rows - low);
  const bool both = high > 0;
  const uint8_t of_tile[8] = {
      low, low, both ? high : low, both ? high : low, low, both ? high : uint8_t{kTileRows}, kTileRows, kTileRows};
  for (int i = 0; i < 8; ++i) {
    shapes.rows[i] = of_tile[i];
    shapes.row_bytes[i] = kTileBytes;
  }
  return shapes;
}

// Adds the products of 32 inputs: of A's 16 or 32 rows, `stride_bytes` apart, by kPanels (1 to 4; 1 or 2 for both rows)
// parts of B as it is multiplied by, one behind the other `panel_numel` elements on. Loads lie side by side, as far as
// tiles reach: where another thread works on the same core, loads and products do not overlap, and going from one to
// the other takes time, too (Emerald Rapids: a step of 32 rows by two panels 90 ns instead of 103; 23 ns alone).
template <typename I, bool kBothRows, int kPanels>
QUARTET_SIMD_INLINE void AddProducts(const uint16_t* a, int64_t stride_bytes, const uint16_t* panels,
                                     int64_t panel_numel) {
  I::template Load<4>(a, stride_bytes);
  if constexpr (kBothRows) {
    I::template Load<5>(reinterpret_cast<const char*>(a) + kTileRows * stride_bytes, stride_bytes);
    I::template LoadOnce<6>(panels, kTileBytes);
    if constexpr (kPanels > 1) I::template LoadOnce<7>(panels + panel_numel, kTileBytes);
    I::template AddProducts<0, 4, 6>();
    if constexpr (kPanels > 1) I::template AddProducts<1, 4, 7>();
    I::template AddProducts<2, 5, 6>();
    if constexpr (kPanels > 1) I::template AddProducts<3, 5, 7>();
  } else {
    I::template LoadOnce<5>(panels, kTileBytes);
    if constexpr (kPanels > 1) I::template LoadOnce<6>(panels + panel_numel, kTileBytes);
    if constexpr (kPanels > 2) I::template LoadOnce<7>(panels + 2 * panel_numel, kTileBytes);
    I::template AddProducts<0, 4, 5>();
    if constexpr (kPanels > 1) I::template AddProducts<1, 4, 6>();
    if constexpr (kPanels > 2) I::template AddProducts<2, 4, 7>();
    if constexpr (kPanels > 3) {
      I::template LoadOnce<5>(panels + 3 * panel_numel, kTileBytes);
      I::template AddProducts<3, 4, 5>();
    }
  }
}

// What this thread's tiles are configured for; of no rows: they are not.
inline thread_local TileShapes configured_shapes;

template <typename I>
void ConfigureTiles(const TileShapes& shapes) {
  if (configured_shapes == shapes) return;
  I::Configure(shapes);
  configured_shapes = shapes;
}
template <typename I>
void ReleaseTiles() {
  if (configured_shapes == TileShapes()) return;
  I::Release();
  configured_shapes = {};
}

}  // namespace quartet

// The innermost loops of bf16_gemm.h, by instruction set. LibTorch-free.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/kernels/cpu/bf16_gemm.h"

namespace quartet {

// The pairs of neighbours in k, one in each 32-bit lane, that one panel has for one step.
inline constexpr int64_t kStepNumel = kPanelRows * 2;

// What will be read next of B, as many panels as are worked on. It is brought into the cache meanwhile: of each of them
// `step_numel` elements from `from` on with each step.
struct NextPanels {
  const uint16_t* from;
  int64_t step_numel;
};

// Some rows by some panels: rows [m, m + R) of C, those of A are at `a`, `stride` elements apart, by the P panels from
// `panels` on, which are columns [n, n + 16 P) of C.
using Bf16Tile = void (*)(const Bf16Gemm& gemm, int64_t m, const void* a, int64_t stride, const uint16_t* panels,
                          int64_t n, const NextPanels& next);

inline constexpr int kMostTileRows = 14;
inline constexpr int kMostTilePanels = 8;

struct Bf16Tiles {
  std::string_view name;      // as in QUARTET_CPU_KERNELS
  bool reads_floats = false;  // rows of A are widened for it; otherwise they are bf16
  int64_t most_rows = 0;      // of a tile, at most kMostTileRows
  // By the number of rows: so many panels that their sums fill the registers.
  const int* panels_for_rows = nullptr;
  // [rows - 1][panels - 1]; above the most panels for these rows, the tile of the most.
  Bf16Tile tile[kMostTileRows][kMostTilePanels] = {};
  // As in bf16_gemm.h.
  void (*pack_panel)(const uint16_t* rows, int64_t count, int64_t stride, int64_t K, uint16_t* panel) = nullptr;
};

// By the instruction that adds two products to each sum (avx512_bf16); nullptr where the CPU has not got it.
const Bf16Tiles* Avx512Bf16Tiles();
// By products of floats, for any CPU.
const Bf16Tiles& FloatBf16Tiles();

}  // namespace quartet

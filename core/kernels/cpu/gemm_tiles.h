// The innermost loops of gemm.h, by instruction set. LibTorch-free.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/kernels/cpu/gemm.h"

namespace quartet {

// What one panel has for one step: 32 bits for each of its rows.
template <typename Element>
inline constexpr int64_t kStepNumel = kPanelRows* kStepInputs<Element>;

// What will be read next of B, as many panels as are worked on. It is brought into the cache meanwhile: of each of them
// `step_numel` elements from `from` on with each step.
template <typename Element>
struct NextPanels {
  const Element* from;
  int64_t step_numel;
};

// Some rows by some panels: rows [m, m + R) of C, those of A are at `a`, `stride` elements apart, by the P panels from
// `panels` on, which are columns [n, n + 16 P) of C.
template <typename Element>
using GemmTile = void (*)(const Gemm<Element>& gemm, int64_t m, const void* a, int64_t stride, const Element* panels,
                          int64_t n, const NextPanels<Element>& next);

inline constexpr int kMostTileRows = 14;
inline constexpr int kMostTilePanels = 8;

template <typename Element>
struct GemmTiles {
  std::string_view name;     // as in QUARTET_CPU_KERNELS
  bool widens_rows = false;  // rows of A are widened to floats for it; otherwise they are Elements
  int64_t most_rows = 0;     // of a tile, at most kMostTileRows
  // By the number of rows: so many panels that their sums fill the registers.
  const int* panels_for_rows = nullptr;
  // [rows - 1][panels - 1]; above the most panels for these rows, the tile of the most.
  GemmTile<Element> tile[kMostTileRows][kMostTilePanels] = {};
  // As in gemm.h.
  void (*pack_panel)(const Element* rows, int64_t count, int64_t stride, int64_t K, Element* panel) = nullptr;
};

// By the instruction that adds two products to each sum (avx512_bf16); nullptr where the CPU has not got it.
const GemmTiles<uint16_t>* Avx512Bf16Tiles();
// By products of floats, for any CPU.
template <typename Element>
const GemmTiles<Element>& FloatTiles();

}  // namespace quartet

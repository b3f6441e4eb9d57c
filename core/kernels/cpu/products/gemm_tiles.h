// The innermost loops of gemm.h, by instruction set. LibTorch-free.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/kernels/cpu/products/gemm.h"

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

// Rows [m, m + rows) of C, of which those of A are at `a`, `stride` elements apart, by the `count` panels from `panels`
// on, which are columns [n, n + 16 count) of C.
template <typename Element>
using MultiplyTile = void (*)(const Gemm<Element>& gemm, int64_t m, int64_t rows, const void* a, int64_t stride,
                              const Element* panels, int64_t count, int64_t n, const NextPanels<Element>& next);

template <typename Element>
struct GemmTiles {
  std::string_view name;     // as in QUARTET_CPU_KERNELS
  bool widens_rows = false;  // rows of A are widened to floats for it; otherwise they are Elements
  int64_t most_rows = 0;     // of a tile
  // By the number of rows, 0 to most_rows: so many panels that their sums fill the registers, the most that a tile
  // takes.
  const int* panels_for_rows = nullptr;
  // `multiply` takes any number of panels that stay in the cache, and needs none of them read ahead.
  bool walks_panels = false;
  int64_t panels_bytes =
      int64_t{512} << 10;  // of panels that are worked on at a time: they stay in a core's second cache
  MultiplyTile<Element> multiply = nullptr;
  // As in gemm.h.
  void (*pack_panel)(const Element* rows, int64_t count, int64_t stride, int64_t K, Element* panel) = nullptr;
  // `count` columns of K elements, the elements `stride` apart, as rows, `row_stride` apart, each with room for 32
  // elements behind it. nullptr: gemm.cc has its own loops.
  void (*transpose)(const Element* columns, int64_t count, int64_t stride, int64_t K, Element* rows,
                    int64_t row_stride) = nullptr;
  // What a thread does behind its last tile of a call, or nullptr.
  void (*release)() = nullptr;
};

// By the instruction that adds two products to each sum (avx512_bf16); nullptr where the CPU has not got it.
const GemmTiles<uint16_t>* Avx512Bf16Tiles();
// By the matrix registers of AMX; nullptr where the CPU has not got them, or the system does not give them.
const GemmTiles<uint16_t>* AmxTiles();
// The same with plain loops in place of its instructions, for any CPU: slow, and with AmxTiles' bits.
const GemmTiles<uint16_t>& EmulatedAmxTiles();
// By products of floats, for any CPU.
template <typename Element>
const GemmTiles<Element>& FloatTiles();

// Writes sums that have been taken to their end, [rows, 16 panels], as columns [n, n + 16 panels) of rows [m, m +
// rows), with what else `gemm` asks for. The first for any CPU, the other for those with Avx512Bf16Tiles.
void StoreSumsByFloats(const Gemm<uint16_t>& gemm, int64_t m, int64_t rows, int64_t n, int64_t panels,
                       const float* sums);
void StoreSumsByAvx512Bf16(const Gemm<uint16_t>& gemm, int64_t m, int64_t rows, int64_t n, int64_t panels,
                           const float* sums);

}  // namespace quartet

// Matrix products on CPUs: C[M, N] = A[M, K] B[N, K]^T. LibTorch-free.
//
// Element: uint16_t with the bits of bf16, or float.
//
// Each element of C is one running fp32 sum over k in ascending order: its bits depend on its row of A, its row of B
// and the CPU's instructions alone, not on M, N, the threads or how the work is cut. That is what makes a token's
// log-probability the same in training and in generation. With avx512_bf16 a step adds two products of bf16, in the
// instruction's own order, and with amx 32 (amx.h); with both, denormal numbers count as zero. Otherwise
// products are of floats, each added with one rounding.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/base/division.h"

namespace quartet {

// By what products of bf16 are made in this process, as the environment's QUARTET_CPU_KERNELS says: "amx";
// "avx512_bf16"; "fp32"; or "amx_emulated", for tests: amx's bits by plain loops. Where it says nothing: amx where the
// CPU has it, avx512_bf16 where the CPU is fast at it (AMD's), else fp32. What the CPU has not got, and any other
// value, ends the process. Bits differ between them.
std::string_view CpuKernels();

// Whether products of bf16 that need no bits of their own are better made by libraries: by oneDNN with avx512_bf16.
// (Without it they have no fast ones, and with amx those here are faster.)
bool OthersHaveBf16Products();

// Whether products of fp32 are made faster here than by MKL: where it leaves half of the registers unused, as on every
// CPU with AVX-512 that is not Intel's. (Measured on Zen 5.)
bool IsFp32GemmFast();

// B is read in panels of 16 rows of it. A step takes 32 bits of each: two neighbours in k of bf16, one of fp32, which
// fill one register together: [N / 16][K / kStepInputs][16][kStepInputs].
inline constexpr int64_t kPanelRows = 16;
template <typename Element>
inline constexpr int64_t kStepInputs = 4 / static_cast<int64_t>(sizeof(Element));

// Of one panel: K is filled up to whole steps with zeros, and so is N to a multiple of 16.
template <typename Element>
constexpr int64_t PanelNumel(int64_t K) {
  return kPanelRows * RoundUp(K, kStepInputs<Element>);
}

// Writes `count` (1 to 16) rows of K elements, `stride` apart, as one panel.
template <typename Element>
void PackPanel(const Element* rows, int64_t count, int64_t stride, int64_t K, Element* panel);

// Writes `count` columns of K elements, the elements `stride` apart, as panels, one behind the other; the last one is
// filled up with zeros.
template <typename Element>
void PackColumns(const Element* columns, int64_t count, int64_t stride, int64_t K, Element* panels);

// Writes `count` columns of K elements of bf16, the elements `stride` apart, as rows, `row_stride` apart, each with
// room for 32 elements behind it.
void TransposeBf16(const uint16_t* columns, int64_t count, int64_t stride, int64_t K, uint16_t* rows,
                   int64_t row_stride);

template <typename Element>
struct Gemm {
  int64_t M = 0, N = 0, K = 0;
  const Element* a = nullptr;  // row m: a + m * a_stride
  int64_t a_stride = 0;
  bool a_is_transposed = false;  // then element m, k is at a + k * a_stride + m
  const Element* b = nullptr;    // row n: b + n * b_stride
  int64_t b_stride = 0;
  bool b_is_transposed = false;  // then element n, k is at b + k * b_stride + n
  bool b_is_packed = false;      // then panels, one behind the other
  int64_t panel_inputs = 0;      // of those panels, where K is a part of them
  // One of them; row m: c + m * c_stride. Rounded to the nearest where it is bf16.
  Element* c = nullptr;
  float* c_fp32 = nullptr;
  int64_t c_stride = 0;
  // Optional, [M, N], row m: first_sums + m * first_stride: the sums go on from these, as if they had not stopped. They
  // may be C.
  const float* first_sums = nullptr;
  int64_t first_stride = 0;
  const Element* bias = nullptr;  // optional, [N]; added to the sum before it is rounded
  // Optional, [M, N], row m: residual + m * c_stride, with `c`; added to the rounded sum, and rounded again.
  const Element* residual = nullptr;
};

// Elements from one panel of B to the next.
template <typename Element>
int64_t PanelStride(const Gemm<Element>& gemm) {
  return PanelNumel<Element>(std::max(gemm.K, gemm.panel_inputs));
}

// Computes rows [row_begin, row_end), columns [column_begin, column_end) of C; columns begin and end at multiples of
// 16, or end at N. `next_column` is where the same thread will probably go on with these rows, so that B is read ahead.
// Thread safe for disjoint parts. Each thread keeps scratch memory: up to 1.5 MiB where B is not packed, and 4 MiB
// for sums where many rows have more inputs than caches hold and C is of bf16.
template <typename Element>
void Multiply(const Gemm<Element>& gemm, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
              int64_t next_column = 0);

// Whether so many rows stay in a core's cache, while a packed B of K inputs is read once.
template <typename Element>
bool AreFewRows(int64_t rows, int64_t K);
// The columns that few rows are computed by at a time; a multiple of 16.
template <typename Element>
int64_t ColumnsOfFewRows(int64_t rows);

}  // namespace quartet

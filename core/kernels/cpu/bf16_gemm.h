// Matrix products of bf16 factors on CPUs: C[M, N] = A[M, K] B[N, K]^T. LibTorch-free.
//
// Each element of C is one running fp32 sum over k in ascending order: its bits depend on its row of A, its row of B
// and the CPU's instructions alone, not on M, N, the threads or how the work is cut. That is what makes a token's
// log-probability the same in training and in generation. With avx512_bf16 a step adds two products, in the
// instruction's own order, and denormal numbers count as zero; elsewhere products are of floats.
//
// Elements of bf16 are uint16_t with its bits.
#pragma once

#include <cstdint>
#include <string_view>

namespace quartet {

// By what products are made in this process, as the environment's QUARTET_CPU_KERNELS says: "avx512_bf16", which is
// taken by itself where the CPU has it and is fast at it (AMD's), and ends the process where it has not; or "fp32". Any
// other value ends the process too. Bits differ between the two.
std::string_view CpuKernels();

// Whether products of bf16 that need no bits of their own are better made by libraries (oneDNN), which have the CPU's
// instructions for them: those of CpuKernels(), or AMX where nothing else is asked for.
bool OthersHaveBf16Products();

// B is read in panels of 16 rows of it, [N / 16][K / 2][16][2]: sixteen pairs of neighbours in k fill one register.
inline constexpr int64_t kPanelRows = 16;

// Of one panel: K is filled up to an even number with zeros, and so is N to a multiple of 16.
inline int64_t PanelNumel(int64_t K) { return kPanelRows * ((K + 1) / 2 * 2); }

// Writes `count` (1 to 16) rows of K elements, `stride` apart, as one panel.
void PackPanel(const uint16_t* rows, int64_t count, int64_t stride, int64_t K, uint16_t* panel);

struct Bf16Gemm {
  int64_t M = 0, N = 0, K = 0;
  const uint16_t* a = nullptr;  // row m: a + m * a_stride
  int64_t a_stride = 0;
  bool a_is_transposed = false;  // then element m, k is at a + k * a_stride + m
  const uint16_t* b = nullptr;   // row n: b + n * b_stride
  int64_t b_stride = 0;
  bool b_is_transposed = false;  // then element n, k is at b + k * b_stride + n
  bool b_is_packed = false;      // then panels, one behind the other
  // One of them; row m: c + m * c_stride. Rounded to the nearest where it is bf16.
  float* c_fp32 = nullptr;
  uint16_t* c_bf16 = nullptr;
  int64_t c_stride = 0;
  const uint16_t* bias = nullptr;  // optional, [N]; added to the sum before it is rounded
  // Optional, [M, N], row m: residual + m * c_stride, with c_bf16; added to the rounded sum, and rounded again.
  const uint16_t* residual = nullptr;
};

// Computes rows [row_begin, row_end), columns [column_begin, column_end) of C; columns begin and end at multiples of
// 16, or end at N. `next_column` is where the same thread will probably go on with these rows, so that B is read ahead.
// Thread safe for disjoint parts. Where B is not packed, each thread keeps scratch memory: half a MiB, for K above
// 8,192 two panels.
void MultiplyBf16(const Bf16Gemm& gemm, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
                  int64_t next_column = 0);

// Whether so many rows stay in a core's cache, while a packed B of K inputs is read once.
bool AreFewRows(int64_t rows, int64_t K);
// The columns that few rows are computed by at a time; a multiple of 16.
int64_t ColumnsOfFewRows(int64_t rows);

}  // namespace quartet

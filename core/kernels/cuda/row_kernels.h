// What a decoder computes row by row between its matrix products (core/kernels/cpu/row_kernels.h), on a GPU: forward
// and backward, with the same roundings. A row's bits do not depend on the rows around it. Without headers of LibTorch
// or CUDA.
//
// Pointers are of the present device's memory, to elements of the type that is named, contiguous where nothing else is
// said. A function starts its work on `stream` (a cudaStream_t); null, or what CUDA says is wrong.
#pragma once

#include <cstdint>

namespace quartet {

enum class RowElement { kFloat, kBf16 };

// Where not null, inverse_rms [rows] becomes 1 / rms, fp32.
const char* LaunchRmsNorm(RowElement element, const void* x, const void* weight, double eps, int64_t rows, int64_t size,
                          void* out, float* inverse_rms, void* stream);

// Rows up to this size are a warp's each, longer ones a block's.
inline constexpr int64_t kShortRow = 256;
// Rows whose gradients of the weight are added up in one row of `weight_sums`.
inline int64_t RmsNormRowsPerSum(int64_t size) { return size <= kShortRow ? 256 : 16; }
// Where not null, `weight_sums`, fp32 [ceil(rows / RmsNormRowsPerSum), size], becomes sums of the weight's gradients.
const char* LaunchRmsNormGradient(RowElement element, const void* x, const void* weight, const float* inverse_rms,
                                  const void* out_gradient, int64_t rows, int64_t size, void* x_gradient,
                                  float* weight_sums, void* stream);

// Tokens of x are x_stride elements apart.
const char* LaunchRotate(RowElement element, const void* x, int64_t x_stride, const float* cosines, const float* sines,
                         int64_t table_stride, bool back, int64_t tokens, int64_t heads, int64_t d, void* out,
                         void* stream);

// Rows of gate and up are `stride` elements apart.
const char* LaunchSwiGlu(RowElement element, const void* gate, const void* up, int64_t stride, int64_t rows,
                         int64_t size, void* out, void* stream);
const char* LaunchSwiGluGradient(RowElement element, const void* gate, const void* up, const void* out_gradient,
                                 int64_t count, void* gate_gradient, void* up_gradient, void* stream);

// Row r of `sums` [rows, size] becomes the sum, in fp32 and in this order, of rows places[starts[r]], ...,
// places[starts[r + 1] - 1] of `copies`.
const char* LaunchSumCopies(RowElement element, const void* copies, const int32_t* starts, const int32_t* places,
                            int64_t rows, int64_t size, void* sums, void* stream);

}  // namespace quartet

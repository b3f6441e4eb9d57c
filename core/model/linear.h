// Products with a weight matrix, as training, scoring and generation all take them.
//
// T tokens, K inputs, N outputs.
#pragma once

#include <ATen/core/Tensor.h>

namespace quartet {

// Whether products of bf16 with `weight` are made by core/model/bf16_gemm.h: on CPUs that have its instruction. A row
// of the product then has the same bits whatever the other rows are, and however many. Everywhere else (fp32, other
// devices and CPUs) they are LibTorch's.
bool UsesBf16Gemm(const at::Tensor& weight);

// input weight^T in fp32, [T, N], without gradient. Of bf16 matrices for which UsesBf16Gemm holds: products of bf16 are
// exact in fp32, so that only the sums are rounded.
at::Tensor WideBf16Product(const at::Tensor& input_TK, const at::Tensor& weight_NK);

}  // namespace quartet

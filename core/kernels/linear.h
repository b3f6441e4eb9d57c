// Products with a weight matrix, as training, scoring and generation all take them.
//
// T tokens, K inputs, N outputs. A weight is a matrix [N, K], or packed: [N / 16, K / 2, 16, 2], the same elements in
// the order in which products read them (element n, k at n / 16, k / 2, n % 16, k % 2).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace quartet {

// Whether products with `weight` are made by core/kernels/cpu/bf16_gemm.h: those of bf16 on CPUs. A row of the product
// then has the same bits whatever the other rows are, however many, and however the weight lies. Everywhere else (fp32,
// other devices) products are LibTorch's, and no weight is packed.
bool UsesBf16Gemm(const at::Tensor& weight);

// input weight^T + bias, [T, N], of the weight's type; `bias_N` may be undefined. In bf16 the bias is added to the fp32
// sum, which is then rounded once. Differentiable, but for packed weights.
at::Tensor Linear(const at::Tensor& input_TK, const at::Tensor& weight, const at::Tensor& bias_N);

// Linear(input, weight, bias) + residual, a new tensor: as if the two were made one after the other, each rounded.
at::Tensor LinearPlus(const at::Tensor& input_TK, const at::Tensor& weight, const at::Tensor& bias_N,
                      const at::Tensor& residual_TN);

// Linear(input, weight, bias) of each, with the same bits; without gradient they are taken together, which spares
// threads the wait for each other in between.
struct LinearWeights {
  at::Tensor weight;
  at::Tensor bias_N;  // may be undefined
};
std::vector<at::Tensor> Linears(const at::Tensor& input_TK, const std::vector<LinearWeights>& weights);

// input weight^T in fp32, [T, N], or fp64 for fp64 matrices, without gradient. Products of bf16 are exact in fp32: only
// the sums are rounded.
at::Tensor WideProduct(const at::Tensor& input_TK, const at::Tensor& weight);

// a b, [M, N], of their type, without gradient, for gradients: their bits may depend on M and N. Rows or columns of
// each lie end to end, or it is copied.
at::Tensor GradientProduct(const at::Tensor& a_MK, const at::Tensor& b_KN);
// Writes it to `product_MN`, whose rows lie end to end each.
void GradientProductInto(const at::Tensor& a_MK, const at::Tensor& b_KN, at::Tensor* product_MN);

// Whether a matrix can be packed: UsesBf16Gemm holds, N is a multiple of 16 and K of 2.
bool CanPack(const at::Tensor& weight_NK);
// Packs a contiguous matrix for which CanPack holds, in its own memory. Returns that memory's view as a packed weight;
// `weight_NK` must not be read any more.
at::Tensor PackInPlace(const at::Tensor& weight_NK);
// The rows `indices_T` (int64) of a packed weight, [T, K].
at::Tensor PackedRows(const at::Tensor& packed, const at::Tensor& indices_T);

}  // namespace quartet

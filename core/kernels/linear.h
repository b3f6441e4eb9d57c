// Products with a weight matrix, as training, scoring and generation all take them.
//
// T tokens, K inputs, N outputs. A weight is a matrix [N, K], or packed: the same elements in the order in which
// products read them, of bf16 [N / 16, K / 2, 16, 2] (element n, k at n / 16, k / 2, n % 16, k % 2), of fp32 [N / 16,
// K, 16, 1].
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace quartet {

// Whether products with `weight` are made by core/kernels/cpu/products/gemm.h: on CPUs, those of bf16, and those of
// fp32 where IsFp32GemmFast holds. A row of the product then has the same bits whatever the other rows are, however
// many, and however the weight lies. Everywhere else (other CPUs' fp32, other types and devices) products are
// LibTorch's, and no weight is packed.
bool UsesGemm(const at::Tensor& weight);

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
// Adds it to `sum_MN`, likewise; not of bf16, which would round each sum.
void AddGradientProduct(const at::Tensor& a_MK, const at::Tensor& b_KN, at::Tensor* sum_MN);

// Whether products of bf16 factors like this one come out in fp32 at once: on GPUs.
bool HasWideProducts(const at::Tensor& factor);
// For factors for which it holds: writes a b to `product_MN`, fp32, or adds it. Without gradient.
void WideProductInto(const at::Tensor& a_MK, const at::Tensor& b_KN, bool adds, at::Tensor* product_MN);

// Whether a matrix can be packed: UsesGemm holds, N is a multiple of 16 and, in bf16, K of 2.
bool CanPack(const at::Tensor& weight_NK);
// Packs a contiguous matrix for which CanPack holds, in its own memory. Returns that memory's view as a packed weight;
// `weight_NK` must not be read any more.
at::Tensor PackInPlace(const at::Tensor& weight_NK);
// A matrix that has been packed some rows at a time, as a packed weight.
at::Tensor AsPacked(const at::Tensor& rows_NK);
// The rows `indices_T` (int64) of a packed weight, [T, K].
at::Tensor PackedRows(const at::Tensor& packed, const at::Tensor& indices_T);

}  // namespace quartet

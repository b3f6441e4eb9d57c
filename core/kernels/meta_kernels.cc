// Operators of our engines whose Meta kernels LibTorch registers in Python only. Each allocates what the real kernel
// allocates, results and temporaries alike.
//
// B sequences, L their length, H query heads, K key/value heads, d head dimension.

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "core/hardware/meta_device.h"

namespace quartet {
namespace {

void FusedAdamW(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, double,
                double, double, double, double, bool, bool, const std::optional<at::Tensor>&,
                const std::optional<at::Tensor>&) {}

void FusedSgd(at::TensorList, at::TensorList, at::TensorList, double, double, double, double, bool, bool, bool,
              const std::optional<at::Tensor>&, const std::optional<at::Tensor>&) {}

at::Tensor IndexSelect(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.at(dim < 0 ? dim + self.dim() : dim) = index.numel();
  return at::empty(sizes, self.options());
}

// LibTorch's own adds in place on real devices, out of place on this one.
at::Tensor IndexSelectBackward(const at::Tensor& gradient, c10::SymIntArrayRef sizes, int64_t, const at::Tensor&) {
  return at::empty_symint(sizes, gradient.options());
}

at::Tensor Where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  return at::empty(at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes()),
                   self.options().dtype(at::result_type(self, other)));
}

// Those whose results are as large as they are, and truth values of one or two of them.
at::Tensor Abs(const at::Tensor& self) { return at::empty_like(self); }

at::Tensor OfEach(const at::Tensor& self) { return at::empty(self.sizes(), self.options().dtype(at::kBool)); }

at::Tensor OfBoth(const at::Tensor& self, const at::Tensor& other) {
  return at::empty(at::infer_size(self.sizes(), other.sizes()), self.options().dtype(at::kBool));
}

// In place.
at::Tensor& OfBothOut(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  TORCH_CHECK(out.sizes() == at::infer_size(self.sizes(), other.sizes()), "not in place");
  return out;
}

// Of the loss of pairs. The forward keeps what the backward needs, as large as itself, on the CPU alone.
std::tuple<at::Tensor, at::Tensor> LogSigmoid(const at::Tensor& self) {
  const bool on_cpu = ComputeDevice(self) == at::kCPU;
  return {at::empty_like(self), on_cpu ? at::empty_like(self) : at::empty({0}, self.options())};
}

at::Tensor LogSigmoidBackward(const at::Tensor& gradient, const at::Tensor&, const at::Tensor&) {
  return at::empty_like(gradient);
}

// LibTorch's flash attention as CUDA computes it: on the CPU our kernels attend in every type that plans know.
std::tuple<at::Tensor, at::Tensor> FlashAttention(const at::Tensor& q_BHLd, const at::Tensor&, const at::Tensor&,
                                                  double, bool, const std::optional<at::Tensor>&,
                                                  std::optional<double>) {
  const int64_t B = q_BHLd.size(0), H = q_BHLd.size(1), L = q_BHLd.size(2), d = q_BHLd.size(3);
  const at::TensorOptions fp32 = q_BHLd.options().dtype(at::kFloat);
  at::Tensor out = at::empty({B, L, H, d}, q_BHLd.options()).transpose(1, 2);
  at::Tensor log_sum = at::empty({B, L, H}, fp32).transpose(1, 2);
  return {out, log_sum};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> FlashAttentionBackward(
    const at::Tensor& gradient_BHLd, const at::Tensor& q_BHLd, const at::Tensor& k_BKLd, const at::Tensor& v_BKLd,
    const at::Tensor&, const at::Tensor&, double, bool, const std::optional<at::Tensor>&, std::optional<double>) {
  const int64_t B = q_BHLd.size(0), H = q_BHLd.size(1), L = q_BHLd.size(2), d = q_BHLd.size(3);
  const int64_t K = k_BKLd.size(1);
  (void)gradient_BHLd;
  const auto result = [&](const at::Tensor& like) {  // in the order of memory that the forward kernel wants
    return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
  };
  at::Tensor q_gradient = result(q_BHLd), k_gradient = result(k_BKLd), v_gradient = result(v_BKLd);
  const at::TensorOptions fp32 = q_BHLd.options().dtype(at::kFloat);
  // FlashAttention-2 as LibTorch calls it (mha_bwd): gradients of the keys and values by query head where heads share
  // them, and of the queries in fp32.
  const int64_t rows = (L + 127) / 128 * 128, padded = (d + 31) / 32 * 32;
  const at::Tensor row_sums = at::empty({B, H, rows}, fp32);
  const at::Tensor q_sums = at::empty({B, rows, H, padded}, fp32);
  at::Tensor k_expanded, v_expanded;
  if (H != K) {
    k_expanded = at::empty({B, L, H, d}, k_BKLd.options());
    v_expanded = at::empty({B, L, H, d}, v_BKLd.options());
  }
  return {q_gradient, k_gradient, v_gradient};
}

// The same of sequences one behind the other, T tokens.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> FlashAttentionOfLengths(
    const at::Tensor& q_THd, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
    const std::optional<at::Tensor>&, int64_t, int64_t, double, bool, bool, std::optional<double>,
    std::optional<int64_t>, std::optional<int64_t>, const std::optional<at::Tensor>&,
    const std::optional<at::Tensor>&) {
  const at::TensorOptions fp32 = q_THd.options().dtype(at::kFloat), none = q_THd.options().dtype(at::kLong);
  return {at::empty(q_THd.sizes(), q_THd.options()), at::empty({q_THd.size(1), q_THd.size(0)}, fp32),
          at::empty({2}, none), at::empty({0}, none), at::empty({0}, q_THd.options())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> FlashAttentionOfLengthsBackward(
    const at::Tensor&, const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd, const at::Tensor&,
    const at::Tensor&, const at::Tensor& cu_seqlens, const at::Tensor&, int64_t, int64_t, double, bool,
    const at::Tensor&, const at::Tensor&, std::optional<double>, std::optional<int64_t>, std::optional<int64_t>) {
  const int64_t T = q_THd.size(0), H = q_THd.size(1), d = q_THd.size(2);
  const auto result = [](const at::Tensor& like) { return at::empty(like.sizes(), like.options()); };
  at::Tensor q_gradient = result(q_THd), k_gradient = result(k_TKd), v_gradient = result(v_TKd);
  const at::TensorOptions fp32 = q_THd.options().dtype(at::kFloat);
  // mha_varlen_bwd: rows are padded by 128 a sequence.
  const int64_t rows = T + 128 * (cu_seqlens.numel() - 1), padded = (d + 31) / 32 * 32;
  const at::Tensor row_sums = at::empty({H, rows}, fp32), q_sums = at::empty({rows, H, padded}, fp32);
  at::Tensor k_expanded, v_expanded;
  if (H != k_TKd.size(1)) {
    k_expanded = at::empty(q_THd.sizes(), k_TKd.options());
    v_expanded = at::empty(q_THd.sizes(), v_TKd.options());
  }
  return {q_gradient, k_gradient, v_gradient};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Meta, m) {
  m.impl("_flash_attention_backward", &FlashAttentionOfLengthsBackward);
  m.impl("_flash_attention_forward", &FlashAttentionOfLengths);
  m.impl("_fused_adamw_", &FusedAdamW);
  m.impl("_fused_sgd_", &FusedSgd);
  m.impl("abs", &Abs);
  m.impl("index_select", &IndexSelect);
  m.impl("index_select_backward", &IndexSelectBackward);
  m.impl("isnan", &OfEach);
  m.impl("log_sigmoid_backward", &LogSigmoidBackward);
  m.impl("log_sigmoid_forward", &LogSigmoid);
  m.impl("logical_and", &OfBoth);
  m.impl("logical_and.out", &OfBothOut);
  m.impl("logical_not", &OfEach);
  m.impl("logical_or", &OfBoth);
  m.impl("logical_or.out", &OfBothOut);
  m.impl("where.self", &Where);
  m.impl("_scaled_dot_product_flash_attention_for_cpu", &FlashAttention);
  m.impl("_scaled_dot_product_flash_attention_for_cpu_backward", &FlashAttentionBackward);
}

}  // namespace quartet

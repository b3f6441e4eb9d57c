// What a decoder computes token by token between its matrix products, each as one function of tensors that is
// differentiable where its inputs require gradients. Between forward and backward a function keeps what came in, no
// intermediate result.
//
// In bf16 and fp32 by the kernels of cpu/row_kernels.h and cuda/row_kernels.h, which give a token the same bits
// whatever the number of tokens; in fp64 by LibTorch's operators, with the same roundings.
#pragma once

#include <ATen/core/Tensor.h>

namespace quartet {

// What norms, angles, gradients and optimizer state are computed and held in: fp32, or fp64 where the weights are.
inline at::ScalarType WideType(at::ScalarType compute_type) {
  return compute_type == at::kDouble ? at::kDouble : at::kFloat;
}

// Root mean square norm over the last dimension, of tokens [T, D] or of heads [T, H, D]; the weight comes after the
// cast, as in transformers.
at::Tensor RmsNorm(const at::Tensor& hidden_TD, const at::Tensor& weight_D, double eps);

// Cosine and sine of each token's rotary angles, [T, d], of WideType; the second half of a row repeats the first.
struct RotaryTable {
  at::Tensor cos_Td;
  at::Tensor sin_Td;
};

// Rotates pairs (i, i + d/2) of each head; [T, H, d].
at::Tensor Rotate(const at::Tensor& x_THd, const RotaryTable& rotary);

// silu(gate) * up, the activation rounded before the product. By value: where no one else holds them, inputs are given
// back as soon as they are not needed.
at::Tensor SwiGlu(at::Tensor gate_TF, at::Tensor up_TF);

}  // namespace quartet

// The decoder as functions over weights: the one forward that training, scoring and rollout share.
//
// Shapes: T tokens, D hidden, H heads, K key/value heads, d head dimension, V vocabulary, F feed-forward.
// Every function is differentiable where its inputs require gradients. Computes in the weights' type (bf16 or fp32);
// norms, rotary tables and softmax in fp32. fp64 weights too, all of it in fp64: for tests that tell an error of
// arithmetic from one of rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/kernels/row_functions.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"

namespace quartet {

// What is added to a product W x: scale * B (A x). Undefined factors: nothing.
struct Adapter {
  at::Tensor a_rK, b_Nr;
  double scale = 1;
};

// Views of one block's parameters; undefined tensors for those that the architecture does not have. The projections may
// be packed (core/kernels/linear.h), and so may the embedding and the vocabulary head: then nothing is differentiable.
class BlockWeights {
 public:
  // `tensors` in the order of the group's parameters.
  BlockWeights(const ParameterGroup& group, const std::vector<at::Tensor>& tensors);
  const at::Tensor& operator[](BlockTensor part) const { return tensors_[static_cast<size_t>(part)]; }

  // Adds adapters to products: `tensors` in the order of a group of MakeLoraLayout's.
  void Adapt(const ParameterGroup& group, const std::vector<at::Tensor>& tensors, double scale);
  // Of the product by that weight.
  const Adapter& adapter(BlockTensor weight) const { return adapters_[static_cast<size_t>(weight)]; }

  // Lets DecoderBlock make one product for q, k and v, and one for gate and up, where they have no biases and lie end
  // to end in memory; nothing is differentiable then. For devices on which few large products are faster than many.
  void JoinProducts();
  // Undefined where they are not joined.
  const at::Tensor& qkv() const { return qkv_; }
  const at::Tensor& gate_up() const { return gate_up_; }

 private:
  at::Tensor Joined(BlockTensor first, BlockTensor last) const;

  std::array<at::Tensor, static_cast<size_t>(BlockTensor::kCount)> tensors_;
  std::array<Adapter, static_cast<size_t>(BlockTensor::kCount)> adapters_;
  at::Tensor qkv_, gate_up_;  // views of the same memory
};

// `type` is WideType of the weights'.
RotaryTable MakeRotaryTable(const ModelConfig& config, const at::Tensor& positions_T, at::ScalarType type = at::kFloat);

// Softmax(q k^T / sqrt(d)) v for one block. q [T, H, d]; k, v [T, K, d], rotated already; returns [T, H, d].
class Attention {
 public:
  virtual ~Attention() = default;
  virtual at::Tensor Attend(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd) const = 0;
};

// What the first block reads of the tokens, [T, D].
at::Tensor Stem(const ModelConfig& config, const at::Tensor& embedding_VD, const at::Tensor& ids_T);
// The gradient of the tokens' rows of the embedding, from that of Stem's result; [T, D] both.
at::Tensor StemGradient(const ModelConfig& config, const at::Tensor& gradient_TD);

// What the head reads of the last block's result, [T, D]: a vocabulary head's products with it are logits.
at::Tensor FinalNorm(const ModelConfig& config, HeadKind head, const at::Tensor& norm_D, const at::Tensor& hidden_TD);

// Adds the ranks' partial sums, fp32 [T, D], into the tensor that it is given; the same bits on all ranks.
using SumPartials = std::function<void(const at::Tensor& partial_TD)>;

// With `sum`, `config` and `weights` are a rank's share (core/model/tensor_parallel.h), and nothing is differentiable.
// What a projection gives is then rounded once as well, after all sums.
at::Tensor DecoderBlock(const ModelConfig& config, const BlockWeights& weights, const RotaryTable& rotary,
                        const Attention& attention, const at::Tensor& hidden_TD, const SumPartials& sum = nullptr);

}  // namespace quartet

#include "core/model/decoder/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <initializer_list>
#include <numbers>
#include <utility>

#include "core/base/logging.h"
#include "core/kernels/linear.h"

namespace quartet {
namespace {

// The angle per position of each pair of dimensions, fp32, [d/2]. The same operations in the same order as
// transformers: at long positions one last place of a frequency is 1e-4 of an angle.
at::Tensor InverseFrequencies(const ModelConfig& config, at::Device device) {
  const at::Tensor exponents =
      at::arange(0, config.head_dim, 2, at::TensorOptions().dtype(at::kLong).device(device)).to(at::kFloat) /
      static_cast<double>(config.head_dim);
  at::Tensor frequencies = at::pow(config.rope_theta, exponents).reciprocal();
  if (!config.rope_scaling.has_value()) return frequencies;

  // Llama 3: wave lengths beyond the context of pre-training are stretched by `factor`, short ones stay, those between
  // are blended.
  const RopeScaling& scaling = *config.rope_scaling;
  const double context = static_cast<double>(scaling.original_max_position_embeddings);
  const at::Tensor wave_lengths = (2 * std::numbers::pi) * frequencies.reciprocal();
  const at::Tensor stretched = frequencies / scaling.factor;
  const at::Tensor blend = (wave_lengths.reciprocal() * context - scaling.low_freq_factor) /
                           (scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor blended = (1 - blend) * stretched + blend * frequencies;
  const at::Tensor is_long = wave_lengths > context / scaling.low_freq_factor;
  const at::Tensor is_short = wave_lengths < context / scaling.high_freq_factor;
  return at::where(is_long, stretched, at::where(is_short, frequencies, blended));
}

at::Tensor NormIfAny(const ModelConfig& config, const at::Tensor& x, const at::Tensor& weight) {
  return weight.defined() ? RmsNorm(x, weight, config.rms_norm_eps) : x;
}

// The inner product of an adapter, [T, r], scaled; undefined where the product has none.
at::Tensor Narrowed(const BlockWeights& weights, BlockTensor weight, const at::Tensor& input) {
  const Adapter& adapter = weights.adapter(weight);
  if (!adapter.a_rK.defined()) return {};
  const at::Tensor narrow_Tr = Linear(input, adapter.a_rK, at::Tensor());
  return adapter.scale == 1 ? narrow_Tr : narrow_Tr * adapter.scale;
}

// `product` by a weight of `input`, and what its adapter adds.
at::Tensor Adapted(const BlockWeights& weights, BlockTensor weight, const at::Tensor& input, at::Tensor product) {
  const at::Tensor narrow_Tr = Narrowed(weights, weight, input);
  if (!narrow_Tr.defined()) return product;
  return LinearPlus(narrow_Tr, weights.adapter(weight).b_Nr, at::Tensor(), product);
}

// The same of products that were made together, whose columns lie beside each other.
void AdaptJoined(const BlockWeights& weights, std::initializer_list<BlockTensor> joined, const at::Tensor& input,
                 const at::Tensor& products) {
  int64_t first = 0;
  for (const BlockTensor weight : joined) {
    const int64_t count = weights[weight].size(0);
    const at::Tensor narrow_Tr = Narrowed(weights, weight, input);
    if (narrow_Tr.defined()) {
      products.narrow(1, first, count).add_(Linear(narrow_Tr, weights.adapter(weight).b_Nr, at::Tensor()));
    }
    first += count;
  }
}

// The angles of queries, whose attention then takes 1 / sqrt(d) as `multiplier`.
RotaryTable Scaled(const RotaryTable& rotary, double multiplier, int64_t d) {
  const double scale = multiplier * std::sqrt(static_cast<double>(d));
  return {.cos_Td = rotary.cos_Td * scale, .sin_Td = rotary.sin_Td * scale};
}

// What goes into the output projection, [T, H * d].
at::Tensor SelfAttention(const ModelConfig& config, const BlockWeights& weights, const RotaryTable& rotary,
                         const Attention& attention, const at::Tensor& hidden_TD) {
  using enum BlockTensor;
  const int64_t T = hidden_TD.size(0), H = config.num_attention_heads, K = config.num_key_value_heads;
  const int64_t d = config.head_dim;
  const BlockSpec& block = config.block;
  const at::Tensor input = NormIfAny(config, hidden_TD, weights[kAttentionInputNorm]);
  const bool each_head = block.qk_norm == QkNorm::kEachHead, scaled = block.attention_multiplier.has_value();
  at::Tensor q, k, v;
  if (weights.qkv().defined()) {
    const at::Tensor joined = Linear(input, weights.qkv(), at::Tensor());
    AdaptJoined(weights, {kQ, kK, kV}, input, joined);
    const at::Tensor all = joined.view({T, H + 2 * K, d});
    v = all.narrow(1, H + K, K);
    if (block.qk_norm == QkNorm::kNone && !scaled) {
      const at::Tensor both = Rotate(all.narrow(1, 0, H + K), rotary);
      return attention.Attend(both.narrow(1, 0, H), both.narrow(1, H, K), v).reshape({T, H * d});
    }
    q = all.narrow(1, 0, H), k = all.narrow(1, H, K);
    if (!each_head) q = q.flatten(1), k = k.flatten(1);
  } else {
    const std::vector<at::Tensor> projected = Linears(
        input, {{weights[kQ], weights[kQBias]}, {weights[kK], weights[kKBias]}, {weights[kV], weights[kVBias]}});
    q = Adapted(weights, kQ, input, projected[0]);
    k = Adapted(weights, kK, input, projected[1]);
    v = Adapted(weights, kV, input, projected[2]).view({T, K, d});
  }
  if (!each_head) q = NormIfAny(config, q, weights[kQNorm]), k = NormIfAny(config, k, weights[kKNorm]);
  q = q.view({T, H, d}), k = k.view({T, K, d});
  if (each_head) q = NormIfAny(config, q, weights[kQNorm]), k = NormIfAny(config, k, weights[kKNorm]);
  q = Rotate(q, scaled ? Scaled(rotary, *block.attention_multiplier, d) : rotary);
  k = Rotate(k, rotary);
  return attention.Attend(q, k, v).reshape({T, H * d});
}

// Output or down projection, what a block makes of it, and `residual_TD`, [T, D]: a new tensor.
at::Tensor AddToResidual(const ModelConfig& config, const BlockWeights& weights, BlockTensor projection,
                         BlockTensor output_norm, const at::Tensor& input, const at::Tensor& residual_TD,
                         const SumPartials& sum) {
  const at::Tensor &weight = weights[projection], &output_norm_D = weights[output_norm];
  const at::Tensor& bias = weights[static_cast<BlockTensor>(static_cast<int>(projection) + 1)];
  const double multiplier = config.block.residual_multiplier;
  const bool as_projected = !output_norm_D.defined() && multiplier == 1 && !weights.adapter(projection).a_rK.defined();
  if (as_projected && !sum) return LinearPlus(input, weight, bias, residual_TD);
  at::Tensor out_TD;
  if (sum) {
    out_TD = WideProduct(input, weight);
    const at::Tensor narrow_Tr = Narrowed(weights, projection, input);
    if (narrow_Tr.defined()) out_TD.add_(WideProduct(narrow_Tr, weights.adapter(projection).b_Nr));
    sum(out_TD);
    if (bias.defined()) out_TD.add_(bias);
    out_TD = out_TD.to(weight.scalar_type());
  } else {
    out_TD = Adapted(weights, projection, input, Linear(input, weight, bias));
  }
  out_TD = NormIfAny(config, out_TD, output_norm_D);
  if (multiplier != 1) out_TD = out_TD * multiplier;
  return sum ? out_TD.add_(residual_TD) : out_TD + residual_TD;
}

// What goes into the down projection, [T, F].
at::Tensor GatedUp(const BlockWeights& weights, const at::Tensor& input_TD) {
  using enum BlockTensor;
  if (weights.gate_up().defined()) {
    const at::Tensor both = Linear(input_TD, weights.gate_up(), at::Tensor());
    AdaptJoined(weights, {kGate, kUp}, input_TD, both);
    const int64_t F = both.size(1) / 2;
    return SwiGlu(both.narrow(1, 0, F), both.narrow(1, F, F));
  }
  std::vector<at::Tensor> both =
      Linears(input_TD, {{weights[kGate], weights[kGateBias]}, {weights[kUp], weights[kUpBias]}});
  return SwiGlu(Adapted(weights, kGate, input_TD, std::move(both[0])),
                Adapted(weights, kUp, input_TD, std::move(both[1])));
}

}  // namespace

BlockWeights::BlockWeights(const ParameterGroup& group, const std::vector<at::Tensor>& tensors) {
  QUARTET_CHECK(group.parameters.size() == tensors.size())
      << group.name << ": " << tensors.size() << " tensors for " << group.parameters.size() << " parameters";
  for (size_t i = 0; i < tensors.size(); ++i) {
    const BlockTensor part = group.parameters[i].in_block;
    QUARTET_CHECK(part != BlockTensor::kCount) << group.parameters[i].name << " is no parameter of a block";
    tensors_[static_cast<size_t>(part)] = tensors[i];
  }
}

void BlockWeights::Adapt(const ParameterGroup& group, const std::vector<at::Tensor>& tensors, double scale) {
  QUARTET_CHECK(group.parameters.size() == tensors.size() && tensors.size() % 2 == 0)
      << group.name << ": " << tensors.size() << " factors for " << group.parameters.size() << " parameters";
  for (size_t i = 0; i < tensors.size(); i += 2) {
    const auto weight = static_cast<size_t>(group.parameters[i].in_block);
    adapters_[weight] = {.a_rK = tensors[i], .b_Nr = tensors[i + 1], .scale = scale};
  }
}

void BlockWeights::JoinProducts() {
  qkv_ = Joined(BlockTensor::kQ, BlockTensor::kVBias);
  gate_up_ = Joined(BlockTensor::kGate, BlockTensor::kUpBias);
}

at::Tensor BlockWeights::Joined(BlockTensor first, BlockTensor last) const {
  const at::Tensor& weight = (*this)[first];
  int64_t rows = 0;
  for (auto part = static_cast<size_t>(first); part <= static_cast<size_t>(last); part += 2) {
    const at::Tensor &next = tensors_[part], &bias = tensors_[part + 1];
    if (bias.defined() || next.dim() != 2 || !next.is_contiguous() || next.size(1) != weight.size(1) ||
        !next.is_alias_of(weight) || next.storage_offset() != weight.storage_offset() + rows * weight.size(1)) {
      return {};
    }
    rows += next.size(0);
  }
  return weight.as_strided({rows, weight.size(1)}, {weight.size(1), 1});
}

RotaryTable MakeRotaryTable(const ModelConfig& config, const at::Tensor& positions_T, at::ScalarType type) {
  const at::Tensor angles = at::outer(positions_T.to(at::kFloat), InverseFrequencies(config, positions_T.device()));
  const at::Tensor both = at::cat({angles, angles}, 1).to(type);
  return {.cos_Td = both.cos(), .sin_Td = both.sin()};
}

at::Tensor Stem(const ModelConfig& config, const at::Tensor& embedding_VD, const at::Tensor& ids_T) {
  const at::Tensor rows_TD =
      embedding_VD.dim() == 4 ? PackedRows(embedding_VD, ids_T) : at::embedding(embedding_VD, ids_T);
  return config.embedding_multiplier == 1 ? rows_TD : rows_TD * config.embedding_multiplier;
}

at::Tensor StemGradient(const ModelConfig& config, const at::Tensor& gradient_TD) {
  return config.embedding_multiplier == 1 ? gradient_TD : gradient_TD * config.embedding_multiplier;
}

at::Tensor FinalNorm(const ModelConfig& config, HeadKind head, const at::Tensor& norm_D, const at::Tensor& hidden_TD) {
  const at::Tensor normal_TD = RmsNorm(hidden_TD, norm_D, config.rms_norm_eps);
  return head == HeadKind::kScalar || config.logits_scaling == 1 ? normal_TD : normal_TD / config.logits_scaling;
}

at::Tensor DecoderBlock(const ModelConfig& config, const BlockWeights& weights, const RotaryTable& rotary,
                        const Attention& attention, const at::Tensor& hidden_TD, const SumPartials& sum) {
  using enum BlockTensor;
  const at::Tensor attended = SelfAttention(config, weights, rotary, attention, hidden_TD);
  const at::Tensor hidden = AddToResidual(config, weights, kO, kAttentionOutputNorm, attended, hidden_TD, sum);
  const at::Tensor gated = GatedUp(weights, NormIfAny(config, hidden, weights[kMlpInputNorm]));
  return AddToResidual(config, weights, kDown, kMlpOutputNorm, gated, hidden, sum);
}

}  // namespace quartet

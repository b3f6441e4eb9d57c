#include "core/model/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include "core/base/logging.h"
#include "core/hardware/meta_device.h"
#include "core/kernels/cpu/cpu_paged_attention.h"
#include "core/kernels/linear.h"
#include "core/kernels/need_gradients.h"

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

// `count` sequences of one length, one behind the other, by LibTorch's kernel.
at::Tensor AttendEqualLengths(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd, int64_t count,
                              int64_t length) {
  const auto split = [&](const at::Tensor& x) {  // [count, heads, length, d], a view
    return x.view({count, length, x.size(1), x.size(2)}).transpose(1, 2);
  };
  at::Tensor out;
  if (q_THd.is_cpu() || q_THd.is_meta()) {
    // Reads each key/value head for the query heads that share it, without copies.
    out = std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(split(q_THd), split(k_TKd), split(v_TKd), 0.0, true));
  } else {
    out = at::scaled_dot_product_attention(split(q_THd), split(k_TKd), split(v_TKd), {}, 0.0, /*is_causal=*/true,
                                           std::nullopt, /*enable_gqa=*/q_THd.size(1) != k_TKd.size(1));
  }
  return out.transpose(1, 2).reshape(q_THd.sizes());
}

// Whether FlashAttention takes sequences of any lengths at once.
bool FlashFits(const at::Tensor& q_THd) {
  return ComputeDevice(q_THd) == at::kCUDA && q_THd.scalar_type() == at::kBFloat16 && q_THd.size(2) % 8 == 0 &&
         q_THd.size(2) <= 256;
}

// Whole sequences, one behind the other. `on_device`: cu_seqlens where FlashAttention reads them; made where undefined.
at::Tensor AttendWhole(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                       const std::vector<int64_t>& cu_seqlens, at::Tensor* on_device) {
  if (FlashFits(q_THd) && q_THd.size(0) > 0) {
    int64_t longest = 0;
    for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) longest = std::max(longest, cu_seqlens[i + 1] - cu_seqlens[i]);
    if (!on_device->defined()) *on_device = at::tensor(cu_seqlens, at::kInt).to(q_THd.device());
    return std::get<0>(at::_flash_attention_forward(q_THd, k_TKd, v_TKd, *on_device, *on_device, longest, longest, 0.0,
                                                    /*is_causal=*/true, /*return_debug_mask=*/false));
  }
  std::vector<at::Tensor> parts;
  const size_t sequences = cu_seqlens.size() - 1;
  for (size_t i = 0; i < sequences;) {
    const int64_t length = cu_seqlens[i + 1] - cu_seqlens[i];
    size_t end = i + 1;  // neighbours of the same length go together
    while (end < sequences && cu_seqlens[end + 1] - cu_seqlens[end] == length) ++end;
    if (length > 0) {
      const int64_t from = cu_seqlens[i], to = cu_seqlens[end];
      parts.push_back(AttendEqualLengths(q_THd.slice(0, from, to), k_TKd.slice(0, from, to), v_TKd.slice(0, from, to),
                                         static_cast<int64_t>(end - i), length));
    }
    i = end;
  }
  if (parts.empty()) return q_THd;
  return parts.size() == 1 ? parts.front() : at::cat(parts, 0);
}

// Its kernels know no trees: shared tokens are given to each sequence that has them, and only own ones taken back.
at::Tensor AttendByLibTorch(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                            const SequenceRows& rows, at::Tensor* cu_seqlens_on_device) {
  if (rows.shared.empty()) return AttendWhole(q_THd, k_TKd, v_TKd, rows.cu_seqlens, cu_seqlens_on_device);
  const std::vector<std::vector<RowRange>> shared = SharedRanges(rows);
  std::vector<RowRange> laid;  // end to end
  std::vector<int64_t> cu_seqlens = {0};
  for (size_t i = 0; i < rows.count(); ++i) {
    if (rows.OwnOf(i) == 0) continue;
    laid.insert(laid.end(), shared[i].begin(), shared[i].end());
    laid.push_back({rows.cu_seqlens[i], rows.OwnOf(i)});
    cu_seqlens.push_back(cu_seqlens.back() + rows.LengthOf(i));
  }
  const auto lay = [&laid](const at::Tensor& x) {
    std::vector<at::Tensor> parts;
    for (const RowRange& range : laid) parts.push_back(x.narrow(0, range.first, range.count));
    return at::cat(parts, 0);
  };
  const at::Tensor out = AttendWhole(lay(q_THd), lay(k_TKd), lay(v_TKd), cu_seqlens, cu_seqlens_on_device);
  std::vector<at::Tensor> own;
  for (size_t i = 0, next = 0; i < rows.count(); ++i) {
    if (rows.OwnOf(i) > 0) own.push_back(out.slice(0, cu_seqlens[next] + rows.SharedOf(i), cu_seqlens[next + 1]));
    next += rows.OwnOf(i) > 0;
  }
  return at::cat(own, 0);
}

// Where keys and values of `rows` lie in a cache of blocks of `block_size`.
struct Pages {
  std::vector<std::vector<int32_t>> tables;  // by sequence
  std::vector<CpuPagedAttention::Write> writes;
  int32_t blocks = 0;
};

// A sequence reads whole blocks that it shares where they are, and has the rest of its shared tokens once more, so that
// each token finds its keys in the places that they have in its own sequence.
Pages LayPages(const SequenceRows& rows, int64_t block_size) {
  Pages pages;
  std::vector<int64_t> row_of;  // of each token of the sequence
  std::vector<int32_t> table;
  for (size_t i = 0; i < rows.count(); ++i) {
    row_of.resize(rows.SharedOf(i));
    for (int64_t row = rows.cu_seqlens[i]; row < rows.cu_seqlens[i + 1]; ++row) row_of.push_back(row);
    const int64_t whole = rows.SharedOf(i) / block_size;
    table.resize(whole);
    if (rows.OwnOf(i) > 0) {
      for (int64_t position = whole * block_size; position < rows.LengthOf(i); ++position) {
        if (position % block_size == 0) table.push_back(pages.blocks++);
        pages.writes.push_back({.row = row_of[position], .block = table.back(), .offset = position % block_size});
      }
    }
    pages.tables.push_back(table);
  }
  return pages;
}

// By the kernel that generation uses, over a cache laid out for this call. `log_sums_TH` as in CpuPagedAttention.
at::Tensor AttendByPages(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                         const SequenceRows& rows, at::Tensor* log_sums_TH) {
  PagedCacheLayout layout;
  layout.kv_heads = k_TKd.size(1);
  layout.head_dim = k_TKd.size(2);
  Pages pages = LayPages(rows, layout.block_size);
  std::vector<AttentionChunk> chunks;
  for (size_t i = 0; i < rows.count(); ++i) {
    if (rows.OwnOf(i) == 0) continue;
    chunks.push_back({.blocks = pages.tables[i].data(), .first = rows.SharedOf(i), .count = rows.OwnOf(i)});
  }
  const at::Tensor cache = at::empty({pages.blocks * layout.block_numel()}, q_THd.options());
  return CpuPagedAttention(layout, std::move(chunks), std::move(pages.writes))
      .Attend(cache.mutable_data_ptr(), q_THd, k_TKd, v_TKd, log_sums_TH);
}

class PagedFunction : public torch::autograd::Function<PagedFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q_THd, const at::Tensor& k_TKd,
                            const at::Tensor& v_TKd, const SequenceRows& rows) {
    at::Tensor log_sums_TH;
    at::Tensor out_THd = AttendByPages(q_THd, k_TKd, v_TKd, rows, &log_sums_TH);
    context->save_for_backward({q_THd, k_TKd, v_TKd, out_THd, log_sums_TH});
    context->saved_data["cu_seqlens"] = rows.cu_seqlens;
    context->saved_data["shared"] = rows.shared;
    return out_THd;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const SequenceRows rows = {.cu_seqlens = context->saved_data["cu_seqlens"].toIntVector(),
                               .shared = context->saved_data["shared"].toIntVector()};
    AttentionGradients found =
        CpuAttentionGradient(rows, saved[0], saved[1], saved[2], saved[3], saved[4], gradients[0]);
    return {std::move(found.q_THd), std::move(found.k_TKd), std::move(found.v_TKd), at::Tensor()};
  }
};

at::Tensor NormIfAny(const ModelConfig& config, const at::Tensor& x, const at::Tensor& weight) {
  return weight.defined() ? RmsNorm(x, weight, config.rms_norm_eps) : x;
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
    const at::Tensor all = Linear(input, weights.qkv(), at::Tensor()).view({T, H + 2 * K, d});
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
    q = projected[0], k = projected[1], v = projected[2].view({T, K, d});
  }
  if (!each_head) q = NormIfAny(config, q, weights[kQNorm]), k = NormIfAny(config, k, weights[kKNorm]);
  q = q.view({T, H, d}), k = k.view({T, K, d});
  if (each_head) q = NormIfAny(config, q, weights[kQNorm]), k = NormIfAny(config, k, weights[kKNorm]);
  q = Rotate(q, scaled ? Scaled(rotary, *block.attention_multiplier, d) : rotary);
  k = Rotate(k, rotary);
  return attention.Attend(q, k, v).reshape({T, H * d});
}

// Output or down projection, what a block makes of it, and `residual_TD`, [T, D]: a new tensor.
at::Tensor AddToResidual(const ModelConfig& config, const at::Tensor& input, const at::Tensor& weight,
                         const at::Tensor& bias, const at::Tensor& output_norm_D, const at::Tensor& residual_TD,
                         const SumPartials& sum) {
  const double multiplier = config.block.residual_multiplier;
  const bool as_projected = !output_norm_D.defined() && multiplier == 1;
  if (as_projected && !sum) return LinearPlus(input, weight, bias, residual_TD);
  at::Tensor out_TD;
  if (sum) {
    out_TD = WideProduct(input, weight);
    sum(out_TD);
    if (bias.defined()) out_TD.add_(bias);
    out_TD = out_TD.to(weight.scalar_type());
  } else {
    out_TD = Linear(input, weight, bias);
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
    const int64_t F = both.size(1) / 2;
    return SwiGlu(both.narrow(1, 0, F), both.narrow(1, F, F));
  }
  std::vector<at::Tensor> both =
      Linears(input_TD, {{weights[kGate], weights[kGateBias]}, {weights[kUp], weights[kUpBias]}});
  return SwiGlu(std::move(both[0]), std::move(both[1]));
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

at::Tensor PackedCausalAttention::Attend(const at::Tensor& q_THd, const at::Tensor& k_TKd,
                                         const at::Tensor& v_TKd) const {
  QUARTET_CHECK(rows_.IsValid() && rows_.rows() == q_THd.size(0))
      << "sequences must cover the " << q_THd.size(0) << " tokens";
  if (ComputeDevice(q_THd) != at::kCPU || q_THd.scalar_type() == at::kDouble) {
    return AttendByLibTorch(q_THd, k_TKd, v_TKd, rows_, &cu_seqlens_);
  }
  if (!NeedGradients(q_THd, k_TKd, v_TKd)) return AttendByPages(q_THd, k_TKd, v_TKd, rows_, /*log_sums_TH=*/nullptr);
  return PagedFunction::apply(q_THd, k_TKd, v_TKd, rows_);
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
  const at::Tensor hidden =
      AddToResidual(config, attended, weights[kO], weights[kOBias], weights[kAttentionOutputNorm], hidden_TD, sum);
  const at::Tensor gated = GatedUp(weights, NormIfAny(config, hidden, weights[kMlpInputNorm]));
  return AddToResidual(config, gated, weights[kDown], weights[kDownBias], weights[kMlpOutputNorm], hidden, sum);
}

}  // namespace quartet

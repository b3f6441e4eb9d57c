#include "core/model/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numbers>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
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

// Whole sequences, one behind the other.
at::Tensor AttendWhole(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                       const std::vector<int64_t>& starts) {
  std::vector<at::Tensor> parts;
  const size_t sequences = starts.size() - 1;
  for (size_t i = 0; i < sequences;) {
    const int64_t length = starts[i + 1] - starts[i];
    size_t end = i + 1;  // neighbours of the same length go together
    while (end < sequences && starts[end + 1] - starts[end] == length) ++end;
    if (length > 0) {
      const int64_t from = starts[i], to = starts[end];
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
                            const SequenceRows& rows) {
  if (rows.shared.empty()) return AttendWhole(q_THd, k_TKd, v_TKd, rows.starts);
  const std::vector<std::vector<RowRange>> shared = SharedRanges(rows);
  std::vector<RowRange> laid;  // end to end
  std::vector<int64_t> starts = {0};
  for (size_t i = 0; i < rows.count(); ++i) {
    if (rows.OwnOf(i) == 0) continue;
    laid.insert(laid.end(), shared[i].begin(), shared[i].end());
    laid.push_back({rows.starts[i], rows.OwnOf(i)});
    starts.push_back(starts.back() + rows.LengthOf(i));
  }
  const auto lay = [&laid](const at::Tensor& x) {
    std::vector<at::Tensor> parts;
    for (const RowRange& range : laid) parts.push_back(x.narrow(0, range.first, range.count));
    return at::cat(parts, 0);
  };
  const at::Tensor out = AttendWhole(lay(q_THd), lay(k_TKd), lay(v_TKd), starts);
  std::vector<at::Tensor> own;
  for (size_t i = 0, next = 0; i < rows.count(); ++i) {
    if (rows.OwnOf(i) > 0) own.push_back(out.slice(0, starts[next] + rows.SharedOf(i), starts[next + 1]));
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
    for (int64_t row = rows.starts[i]; row < rows.starts[i + 1]; ++row) row_of.push_back(row);
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
    context->saved_data["starts"] = rows.starts;
    context->saved_data["shared"] = rows.shared;
    return out_THd;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const SequenceRows rows = {.starts = context->saved_data["starts"].toIntVector(),
                               .shared = context->saved_data["shared"].toIntVector()};
    AttentionGradients found =
        CpuAttentionGradient(rows, saved[0], saved[1], saved[2], saved[3], saved[4], gradients[0]);
    return {std::move(found.q_THd), std::move(found.k_TKd), std::move(found.v_TKd), at::Tensor()};
  }
};

// What goes into the output projection, [T, H * d].
at::Tensor SelfAttention(const ModelConfig& config, const BlockWeights& weights, const RotaryTable& rotary,
                         const Attention& attention, const at::Tensor& hidden_TD) {
  const int64_t T = hidden_TD.size(0), H = config.num_attention_heads, K = config.num_key_value_heads;
  const int64_t d = config.head_dim;
  const at::Tensor input = RmsNorm(hidden_TD, weights.input_norm_D, config.rms_norm_eps);
  const std::vector<at::Tensor> projected = Linears(
      input, {{weights.q_proj, weights.q_bias}, {weights.k_proj, weights.k_bias}, {weights.v_proj, weights.v_bias}});
  at::Tensor q = projected[0].view({T, H, d}), k = projected[1].view({T, K, d});
  const at::Tensor v = projected[2].view({T, K, d});
  if (weights.q_norm_d.defined()) {
    q = RmsNorm(q, weights.q_norm_d, config.rms_norm_eps);
    k = RmsNorm(k, weights.k_norm_d, config.rms_norm_eps);
  }
  q = Rotate(q, rotary);
  k = Rotate(k, rotary);
  return attention.Attend(q, k, v).reshape({T, H * d});
}

// Output or down projection and `residual_TD`, [T, D]: a new tensor.
at::Tensor ProjectBack(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                       const at::Tensor& residual_TD, const SumPartials& sum) {
  if (!sum) return LinearPlus(input, weight, bias, residual_TD);
  at::Tensor partial = WideProduct(input, weight);
  sum(partial);
  if (bias.defined()) partial.add_(bias);
  return partial.to(weight.scalar_type()).add_(residual_TD);
}

// What goes into the down projection, [T, F].
at::Tensor GatedUp(const BlockWeights& weights, const at::Tensor& input_TD) {
  std::vector<at::Tensor> both =
      Linears(input_TD, {{weights.gate_proj, weights.gate_bias}, {weights.up_proj, weights.up_bias}});
  return SwiGlu(std::move(both[0]), std::move(both[1]));
}

}  // namespace

BlockWeights MakeBlockWeights(const ParameterGroup& group, const std::vector<at::Tensor>& tensors) {
  QUARTET_CHECK(group.parameters.size() == tensors.size())
      << group.name << ": " << tensors.size() << " tensors for " << group.parameters.size() << " parameters";
  BlockWeights w;
  const std::pair<std::string_view, at::Tensor*> places[] = {
      {".input_layernorm.weight", &w.input_norm_D},
      {".self_attn.q_proj.weight", &w.q_proj},
      {".self_attn.k_proj.weight", &w.k_proj},
      {".self_attn.v_proj.weight", &w.v_proj},
      {".self_attn.o_proj.weight", &w.o_proj},
      {".self_attn.q_proj.bias", &w.q_bias},
      {".self_attn.k_proj.bias", &w.k_bias},
      {".self_attn.v_proj.bias", &w.v_bias},
      {".self_attn.o_proj.bias", &w.o_bias},
      {".self_attn.q_norm.weight", &w.q_norm_d},
      {".self_attn.k_norm.weight", &w.k_norm_d},
      {".post_attention_layernorm.weight", &w.post_attention_norm_D},
      {".mlp.gate_proj.weight", &w.gate_proj},
      {".mlp.up_proj.weight", &w.up_proj},
      {".mlp.down_proj.weight", &w.down_proj},
      {".mlp.gate_proj.bias", &w.gate_bias},
      {".mlp.up_proj.bias", &w.up_bias},
      {".mlp.down_proj.bias", &w.down_bias},
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = group.parameters[i].name;
    bool placed = false;
    for (const auto& [suffix, tensor] : places) {
      if (name.size() < suffix.size() || name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0)
        continue;
      *tensor = tensors[i];
      placed = true;
    }
    QUARTET_CHECK(placed) << name << " is no parameter of a block";
  }
  return w;
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
    return AttendByLibTorch(q_THd, k_TKd, v_TKd, rows_);
  }
  if (!NeedGradients(q_THd, k_TKd, v_TKd)) return AttendByPages(q_THd, k_TKd, v_TKd, rows_, /*log_sums_TH=*/nullptr);
  return PagedFunction::apply(q_THd, k_TKd, v_TKd, rows_);
}

at::Tensor Embed(const at::Tensor& embedding_VD, const at::Tensor& ids_T) {
  return embedding_VD.dim() == 4 ? PackedRows(embedding_VD, ids_T) : at::embedding(embedding_VD, ids_T);
}

at::Tensor DecoderBlock(const ModelConfig& config, const BlockWeights& weights, const RotaryTable& rotary,
                        const Attention& attention, const at::Tensor& hidden_TD, const SumPartials& sum) {
  const at::Tensor attended = SelfAttention(config, weights, rotary, attention, hidden_TD);
  const at::Tensor hidden = ProjectBack(attended, weights.o_proj, weights.o_bias, hidden_TD, sum);
  const at::Tensor gated = GatedUp(weights, RmsNorm(hidden, weights.post_attention_norm_D, config.rms_norm_eps));
  return ProjectBack(gated, weights.down_proj, weights.down_bias, hidden, sum);
}

}  // namespace quartet

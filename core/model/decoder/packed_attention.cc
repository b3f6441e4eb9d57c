#include "core/model/decoder/packed_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/logging.h"
#include "core/hardware/meta_device.h"
#include "core/kernels/cpu/attention/cpu_paged_attention.h"
#include "core/kernels/cuda/present_stream.h"
#include "core/kernels/cuda/row_kernels.h"
#include "core/kernels/need_gradients.h"

namespace quartet {
namespace {

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
                       const std::vector<int64_t>& cu_seqlens) {
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

// The tokens of each sequence that has own ones, end to end: shared ones each time.
struct SequencePaths {
  std::vector<RowRange> ranges;
  std::vector<int64_t> cu_seqlens = {0};  // of whole sequences
  std::vector<int64_t> cu_own = {0};      // of their own tokens alone: rows of the batch
};

SequencePaths PathsOf(const SequenceRows& rows) {
  SequencePaths paths;
  const std::vector<std::vector<RowRange>> shared = SharedRanges(rows);
  for (size_t i = 0; i < rows.count(); ++i) {
    if (rows.OwnOf(i) == 0) continue;
    paths.ranges.insert(paths.ranges.end(), shared[i].begin(), shared[i].end());
    paths.ranges.push_back({rows.cu_seqlens[i], rows.OwnOf(i)});
    paths.cu_seqlens.push_back(paths.cu_seqlens.back() + rows.LengthOf(i));
    paths.cu_own.push_back(rows.cu_seqlens[i + 1]);
  }
  return paths;
}

// Its kernels know no trees: shared tokens are given to each sequence that has them, and only own ones taken back.
at::Tensor AttendByLibTorch(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                            const SequenceRows& rows) {
  if (rows.shared.empty()) return AttendWhole(q_THd, k_TKd, v_TKd, rows.cu_seqlens);
  const SequencePaths paths = PathsOf(rows);
  const auto lay = [&paths](const at::Tensor& x) {
    std::vector<at::Tensor> parts;
    for (const RowRange& range : paths.ranges) parts.push_back(x.narrow(0, range.first, range.count));
    return at::cat(parts, 0);
  };
  const at::Tensor out = AttendWhole(lay(q_THd), lay(k_TKd), lay(v_TKd), paths.cu_seqlens);
  std::vector<at::Tensor> own;
  for (size_t i = 0; i + 1 < paths.cu_seqlens.size(); ++i) {
    const int64_t end = paths.cu_seqlens[i + 1];
    own.push_back(out.slice(0, end - (paths.cu_own[i + 1] - paths.cu_own[i]), end));
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

}  // namespace

// What FlashAttention reads of a batch, on its device. Its queries are the own tokens of each sequence, its keys all
// that the sequence has: the last query sees them all, the one before it all but the last, and so on.
struct FlashRows {
  FlashRows(const SequenceRows& rows, at::Device device);

  at::Tensor cu_queries, cu_keys;  // int32
  int64_t most_queries = 0, most_keys = 0;
  // Undefined where no tokens are shared, and keys are those of the rows.
  at::Tensor key_rows_L;          // int64, of each key the row that it is of
  at::Tensor key_starts, keys_L;  // int32; the keys of row r: keys_L[key_starts[r]], ..., keys_L[key_starts[r + 1] - 1]
};

FlashRows::FlashRows(const SequenceRows& rows, at::Device device) {
  const auto on_device = [&device](const std::vector<int64_t>& values, at::ScalarType type) {
    return at::tensor(values, type).to(device);
  };
  const SequencePaths paths = PathsOf(rows);
  const auto longest = [](const std::vector<int64_t>& cu) {
    int64_t most = 0;
    for (size_t i = 0; i + 1 < cu.size(); ++i) most = std::max(most, cu[i + 1] - cu[i]);
    return most;
  };
  cu_queries = on_device(paths.cu_own, at::kInt), cu_keys = on_device(paths.cu_seqlens, at::kInt);
  most_queries = longest(paths.cu_own), most_keys = longest(paths.cu_seqlens);
  if (device.is_meta()) {  // stands for whatever batch has so many rows
    const int64_t most = kMostKeysOfARow * rows.rows();
    key_rows_L = at::empty({most}, at::TensorOptions(device).dtype(at::kLong));
    key_starts = at::empty({rows.rows() + 1}, at::TensorOptions(device).dtype(at::kInt));
    keys_L = at::empty({most}, at::TensorOptions(device).dtype(at::kInt));
    return;
  }
  if (rows.shared.empty()) return;
  std::vector<int64_t> row_of_key;
  for (const RowRange& range : paths.ranges) {
    for (int64_t r = 0; r < range.count; ++r) row_of_key.push_back(range.first + r);
  }
  std::vector<int64_t> starts(rows.rows() + 1), keys(row_of_key.size());
  for (const int64_t row : row_of_key) ++starts[row + 1];
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  std::vector<int64_t> next = starts;
  for (size_t key = 0; key < row_of_key.size(); ++key) keys[next[row_of_key[key]]++] = static_cast<int64_t>(key);
  key_rows_L = on_device(row_of_key, at::kLong);
  key_starts = on_device(starts, at::kInt), keys_L = on_device(keys, at::kInt);
}

namespace {

// Of each row the sum of what its keys have, which are rows of `of_keys` [L, K, d].
at::Tensor SumOfKeys(const at::Tensor& of_keys_LKd, const at::Tensor& key_starts, const at::Tensor& keys_L) {
  const int64_t rows = key_starts.numel() - 1, K = of_keys_LKd.size(1), d = of_keys_LKd.size(2);
  at::Tensor sums_TKd = at::empty({rows, K, d}, of_keys_LKd.options());
  if (of_keys_LKd.is_meta()) return sums_TKd;
  StartOn(of_keys_LKd.device(), "gradients of shared tokens", [&](void* stream) {
    return LaunchSumCopies(RowElement::kBf16, of_keys_LKd.const_data_ptr(), key_starts.const_data_ptr<int32_t>(),
                           keys_L.const_data_ptr<int32_t>(), rows, K * d, sums_TKd.mutable_data_ptr(), stream);
  });
  return sums_TKd;
}

// Of a batch that shares tokens: keys and values are copied for the call, in both directions.
class FlashFunction : public torch::autograd::Function<FlashFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q_THd, const at::Tensor& k_TKd,
                            const at::Tensor& v_TKd, const FlashRows& rows) {
    auto [out_THd, log_sums, seed, offset, mask] = at::_flash_attention_forward(
        q_THd, k_TKd.index_select(0, rows.key_rows_L), v_TKd.index_select(0, rows.key_rows_L), rows.cu_queries,
        rows.cu_keys, rows.most_queries, rows.most_keys, 0.0, /*is_causal=*/true, /*return_debug_mask=*/false);
    context->save_for_backward({q_THd, k_TKd, v_TKd, out_THd, log_sums, seed, offset, rows.cu_queries, rows.cu_keys,
                                rows.key_rows_L, rows.key_starts, rows.keys_L});
    context->saved_data["most_queries"] = rows.most_queries;
    context->saved_data["most_keys"] = rows.most_keys;
    return out_THd;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &key_rows_L = saved[9], &key_starts = saved[10], &keys_L = saved[11];
    const auto [q_gradient, k_copies, v_copies] = at::_flash_attention_backward(
        gradients[0], saved[0], saved[1].index_select(0, key_rows_L), saved[2].index_select(0, key_rows_L), saved[3],
        saved[4], saved[7], saved[8], context->saved_data["most_queries"].toInt(),
        context->saved_data["most_keys"].toInt(), 0.0, /*is_causal=*/true, saved[5], saved[6]);
    return {q_gradient, SumOfKeys(k_copies, key_starts, keys_L), SumOfKeys(v_copies, key_starts, keys_L), at::Tensor()};
  }
};

at::Tensor AttendByFlash(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                         const FlashRows& rows) {
  if (rows.key_rows_L.defined()) return FlashFunction::apply(q_THd, k_TKd, v_TKd, rows);
  return std::get<0>(at::_flash_attention_forward(q_THd, k_TKd, v_TKd, rows.cu_queries, rows.cu_keys, rows.most_queries,
                                                  rows.most_keys, 0.0, /*is_causal=*/true,
                                                  /*return_debug_mask=*/false));
}

}  // namespace

at::Tensor PackedCausalAttention::Attend(const at::Tensor& q_THd, const at::Tensor& k_TKd,
                                         const at::Tensor& v_TKd) const {
  QUARTET_CHECK(rows_.IsValid() && rows_.rows() == q_THd.size(0))
      << "sequences must cover the " << q_THd.size(0) << " tokens";
  if (q_THd.size(0) == 0) return q_THd;
  if (ComputeDevice(q_THd) == at::kCUDA && FlashAttentionTakes(q_THd.scalar_type() == at::kBFloat16, q_THd.size(2))) {
    if (flash_rows_ == nullptr) flash_rows_ = std::make_shared<FlashRows>(rows_, q_THd.device());
    return AttendByFlash(q_THd, k_TKd, v_TKd, *flash_rows_);
  }
  if (ComputeDevice(q_THd) != at::kCPU || q_THd.scalar_type() == at::kDouble) {
    return AttendByLibTorch(q_THd, k_TKd, v_TKd, rows_);
  }
  if (!NeedGradients(q_THd, k_TKd, v_TKd)) return AttendByPages(q_THd, k_TKd, v_TKd, rows_, /*log_sums_TH=*/nullptr);
  return PagedFunction::apply(q_THd, k_TKd, v_TKd, rows_);
}

}  // namespace quartet

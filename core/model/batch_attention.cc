#include "core/model/batch_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "core/base/parallel.h"
#include "core/model/attention_gradient.h"

namespace quartet {
namespace {

// Short enough that the parts of one long sequence are spread evenly over threads.
constexpr int64_t kTokensPerTask = 32;
// Worth another thread.
constexpr int64_t kTokensPerWrite = 64;

// Of some tokens of one chunk, one key/value head.
template <typename Element>
struct AttentionTask {
  PagedAttentionTask<Element> attention;
  int64_t new_row;  // of the token whose key and value are to be written first; -1: they have been
};

template <typename Element>
at::Tensor Attend(const PagedCacheLayout& layout, const std::vector<AttentionChunk>& chunks, Element* cache,
                  const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor* log_sums_TH) {
  const int64_t H = q.size(1), K = layout.kv_heads, d = layout.head_dim, S = layout.block_size, G = H / K;
  const auto* queries = static_cast<const Element*>(q.const_data_ptr());
  const auto* new_keys = static_cast<const Element*>(k.const_data_ptr());
  const auto* new_values = static_cast<const Element*>(v.const_data_ptr());
  const at::Tensor out = at::empty_like(q);
  auto* outputs = static_cast<Element*>(out.mutable_data_ptr());
  float* log_sums = log_sums_TH == nullptr ? nullptr : log_sums_TH->mutable_data_ptr<float>();
  const auto write = [&](const int32_t* blocks, int64_t position, int64_t row, int64_t head) {
    const int64_t offset = (row * K + head) * d;
    Element* block = cache + blocks[position / S] * layout.block_numel();
    WriteToCache(layout, new_keys + offset, new_values + offset, position % S, block + head * layout.head_numel());
  };

  std::vector<AttentionTask<Element>> tasks;
  int64_t row = 0;  // of the chunk's first token
  for (const AttentionChunk& chunk : chunks) {
    // One that decodes is written by the task that reads it.
    const bool alone = chunk.count == 1;
    if (!alone) {
      at::parallel_for(0, chunk.count, kTokensPerWrite, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          for (int64_t head = 0; head < K; ++head) write(chunk.blocks, chunk.first + i, row + i, head);
        }
      });
    }
    for (int64_t first = 0; first < chunk.count; first += kTokensPerTask) {
      for (int64_t head = 0; head < K; ++head) {
        const int64_t offset = ((row + first) * H + head * G) * d;
        tasks.push_back({.attention = {.queries = queries + offset,
                                       .outputs = outputs + offset,
                                       .token_stride = H * d,
                                       .log_sums = log_sums == nullptr ? nullptr : log_sums + offset / d,
                                       .log_sum_stride = H,
                                       .tokens = std::min(kTokensPerTask, chunk.count - first),
                                       .group = G,
                                       .first_position = chunk.first + first,
                                       .blocks = chunk.blocks,
                                       .cache = cache,
                                       .kv_head = head},
                         .new_row = alone ? row : -1});
      }
    }
    row += chunk.count;
  }
  std::fill_n(outputs + row * H * d, (q.size(0) - row) * H * d, Element{0});
  at::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const PagedAttentionTask<Element>& task = tasks[i].attention;
      if (tasks[i].new_row >= 0) write(task.blocks, task.first_position, tasks[i].new_row, task.kv_head);
      PagedAttend(layout, task);
    }
  });
  return out;
}

template <typename Element>
void Gradients(const std::vector<int64_t>& starts, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const at::Tensor& out, const at::Tensor& log_sums, const at::Tensor& out_gradient,
               const AttentionGradients& gradients, const at::Tensor& scratch) {
  const int64_t H = q.size(1), K = k.size(1), d = q.size(2), G = H / K;
  const auto read = [](const at::Tensor& x) { return static_cast<const Element*>(x.const_data_ptr()); };
  const auto write = [](const at::Tensor& x) { return static_cast<Element*>(x.mutable_data_ptr()); };
  std::vector<AttentionGradientTask<Element>> tasks;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    if (starts[i] == starts[i + 1]) continue;
    for (int64_t head = 0; head < K; ++head) {
      const int64_t query = (starts[i] * H + head * G) * d, key = (starts[i] * K + head) * d;
      tasks.push_back({.queries = read(q) + query,
                       .outputs = read(out) + query,
                       .output_gradients = read(out_gradient) + query,
                       .query_gradients = write(gradients.q_THd) + query,
                       .query_stride = H * d,
                       .keys = read(k) + key,
                       .values = read(v) + key,
                       .key_gradients = write(gradients.k_TKd) + key,
                       .value_gradients = write(gradients.v_TKd) + key,
                       .key_stride = K * d,
                       .log_sums = log_sums.const_data_ptr<float>() + query / d,
                       .log_sum_stride = H,
                       .tokens = starts[i + 1] - starts[i],
                       .group = G,
                       .head_dim = d});
    }
  }
  auto* memory = scratch.mutable_data_ptr<float>();
  at::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    float* own = memory + at::get_thread_num() * scratch.size(1);
    for (int64_t i = begin; i < end; ++i) AttendGradient(tasks[i], own);
  });
}

}  // namespace

at::Tensor AttendInBatch(const PagedCacheLayout& layout, const std::vector<AttentionChunk>& chunks, void* cache,
                         const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                         at::Tensor* log_sums_TH) {
  const at::Tensor q = q_THd.contiguous(), k = k_TKd.contiguous(), v = v_TKd.contiguous();
  if (log_sums_TH != nullptr) *log_sums_TH = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  if (q.is_meta()) return at::empty_like(q);
  if (q.scalar_type() == at::kFloat) {
    return Attend(layout, chunks, static_cast<float*>(cache), q, k, v, log_sums_TH);
  }
  return Attend(layout, chunks, static_cast<uint16_t*>(cache), q, k, v, log_sums_TH);
}

AttentionGradients AttendInBatchGradient(const std::vector<int64_t>& starts, const at::Tensor& q_THd,
                                         const at::Tensor& k_TKd, const at::Tensor& v_TKd, const at::Tensor& out_THd,
                                         const at::Tensor& log_sums_TH, const at::Tensor& out_gradient_THd) {
  const at::Tensor q = q_THd.contiguous(), k = k_TKd.contiguous(), v = v_TKd.contiguous();
  const at::Tensor out = out_THd.contiguous(), out_gradient = out_gradient_THd.contiguous();
  const AttentionGradients gradients = {
      .q_THd = at::empty_like(q), .k_TKd = at::empty_like(k), .v_TKd = at::empty_like(v)};
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < starts.size(); ++i) longest = std::max(longest, starts[i + 1] - starts[i]);
  const at::Tensor scratch =
      at::empty({at::get_num_threads(), AttentionGradientScratch(longest, q.size(1) / k.size(1), q.size(2))},
                q.options().dtype(at::kFloat));
  if (q.is_meta()) return gradients;
  if (q.scalar_type() == at::kFloat) {
    Gradients<float>(starts, q, k, v, out, log_sums_TH, out_gradient, gradients, scratch);
  } else {
    Gradients<uint16_t>(starts, q, k, v, out, log_sums_TH, out_gradient, gradients, scratch);
  }
  return gradients;
}

}  // namespace quartet

#include "core/model/batch_attention.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "core/base/parallel.h"

namespace quartet {
namespace {

// Short enough that the parts of one long sequence are spread evenly over threads.
constexpr int64_t kTokensPerTask = 32;

template <typename Element>
at::Tensor Attend(const PagedCacheLayout& layout, const std::vector<AttentionChunk>& chunks, Element* keys,
                  Element* values, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t H = q.size(1), K = layout.kv_heads, d = layout.head_dim, S = layout.block_size, G = H / K;
  const auto* queries = static_cast<const Element*>(q.const_data_ptr());
  const auto* new_keys = static_cast<const Element*>(k.const_data_ptr());
  const auto* new_values = static_cast<const Element*>(v.const_data_ptr());
  const at::Tensor out = at::empty_like(q);
  auto* outputs = static_cast<Element*>(out.mutable_data_ptr());

  std::vector<PagedAttentionTask<Element>> tasks;  // some tokens of one chunk, one key/value head
  int64_t row = 0;                                 // of the chunk's first token
  for (const AttentionChunk& chunk : chunks) {
    for (int64_t i = 0; i < chunk.count; ++i) {
      const int64_t position = chunk.first + i, block = chunk.blocks[position / S];
      WriteToCache<Element>(layout, new_keys + (row + i) * K * d, new_values + (row + i) * K * d, position % S,
                            keys + block * layout.key_block_numel(), values + block * layout.value_block_numel());
    }
    for (int64_t first = 0; first < chunk.count; first += kTokensPerTask) {
      for (int64_t head = 0; head < K; ++head) {
        const int64_t offset = ((row + first) * H + head * G) * d;
        tasks.push_back({.queries = queries + offset,
                         .outputs = outputs + offset,
                         .token_stride = H * d,
                         .tokens = std::min(kTokensPerTask, chunk.count - first),
                         .group = G,
                         .first_position = chunk.first + first,
                         .blocks = chunk.blocks,
                         .key_cache = keys,
                         .value_cache = values,
                         .kv_head = head});
      }
    }
    row += chunk.count;
  }
  std::fill_n(outputs + row * H * d, (q.size(0) - row) * H * d, Element{0});
  at::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) PagedAttend(layout, tasks[i]);
  });
  return out;
}

}  // namespace

at::Tensor AttendInBatch(const PagedCacheLayout& layout, const std::vector<AttentionChunk>& chunks, void* key_cache,
                         void* value_cache, const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd) {
  const at::Tensor q = q_THd.contiguous(), k = k_TKd.contiguous(), v = v_TKd.contiguous();
  if (q.is_meta()) return at::empty_like(q);
  if (q.scalar_type() == at::kFloat) {
    return Attend(layout, chunks, static_cast<float*>(key_cache), static_cast<float*>(value_cache), q, k, v);
  }
  return Attend(layout, chunks, static_cast<uint16_t*>(key_cache), static_cast<uint16_t*>(value_cache), q, k, v);
}

}  // namespace quartet

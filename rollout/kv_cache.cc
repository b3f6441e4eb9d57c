// T tokens of one forward, H query heads, K key/value heads, d head dimension.

#include "rollout/kv_cache.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>

namespace quartet {
namespace {

// Query tokens that one task of the attention works on; a multiple keeps long chunks parallel.
constexpr int64_t kTokensPerTask = 32;

}  // namespace

KvCache::KvCache(const PagedCacheLayout& layout, int64_t layers, int64_t blocks, int64_t element_bytes, Ledger* ledger)
    : layout_(layout),
      layers_(layers),
      blocks_(blocks),
      element_bytes_(element_bytes),
      bytes_(layers * blocks * BlockBytes(layout, element_bytes)),
      entry_(ledger, MemoryCategory::kKvCache, bytes_),
      memory_(static_cast<char*>(std::calloc(bytes_, 1)), &std::free) {
  if (memory_ != nullptr) return;
  throw OutOfMemoryError(ledger->ExplainFailure(MemoryCategory::kKvCache, bytes_, MemoryTier::kDevice));
}

void KvCache::Copy(const BlockCopy& copy) {
  const int64_t key_bytes = layout_.key_block_numel() * element_bytes_;
  const int64_t value_bytes = layout_.value_block_numel() * element_bytes_;
  for (int64_t layer = 0; layer < layers_; ++layer) {
    std::memcpy(keys(layer) + copy.to * key_bytes, keys(layer) + copy.from * key_bytes, key_bytes);
    std::memcpy(values(layer) + copy.to * value_bytes, values(layer) + copy.from * value_bytes, value_bytes);
  }
}

at::Tensor PagedAttention::Attend(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd) const {
  return q_THd.scalar_type() == at::kFloat ? AttendAs<float>(q_THd, k_TKd, v_TKd)
                                           : AttendAs<uint16_t>(q_THd, k_TKd, v_TKd);
}

template <typename Element>
at::Tensor PagedAttention::AttendAs(const at::Tensor& q_any, const at::Tensor& k_any, const at::Tensor& v_any) const {
  const PagedCacheLayout& layout = cache_->layout();
  const at::Tensor q = q_any.contiguous();
  const at::Tensor k = k_any.contiguous();
  const at::Tensor v = v_any.contiguous();
  at::Tensor out = at::empty_like(q);
  const auto* queries = static_cast<const Element*>(q.const_data_ptr());
  const auto* new_keys = static_cast<const Element*>(k.const_data_ptr());
  const auto* new_values = static_cast<const Element*>(v.const_data_ptr());
  auto* outputs = static_cast<Element*>(out.mutable_data_ptr());
  auto* keys = reinterpret_cast<Element*>(cache_->keys(layer_));
  auto* values = reinterpret_cast<Element*>(cache_->values(layer_));

  const int64_t heads = q.size(1);
  const int64_t d = layout.head_dim;
  const int64_t group = heads / layout.kv_heads;
  struct Part {
    const ScheduledChunk* chunk;
    int64_t row;    // of the part's first token, in q
    int64_t first;  // token of the chunk
    int64_t count;
    int64_t kv_head;
  };
  std::vector<Part> parts;
  int64_t row = 0;
  for (const ScheduledChunk& chunk : *chunks_) {
    for (int64_t i = 0; i < chunk.count; ++i) {
      const int64_t position = chunk.first + i;
      const int64_t block = chunk.sequence->blocks[position / layout.block_size];
      WriteToCache<Element>(layout, new_keys + (row + i) * layout.kv_heads * d,
                            new_values + (row + i) * layout.kv_heads * d, position % layout.block_size,
                            keys + block * layout.key_block_numel(), values + block * layout.value_block_numel());
    }
    for (int64_t first = 0; first < chunk.count; first += kTokensPerTask) {
      const int64_t count = std::min(kTokensPerTask, chunk.count - first);
      for (int64_t head = 0; head < layout.kv_heads; ++head) {
        parts.push_back({&chunk, row + first, first, count, head});
      }
    }
    row += chunk.count;
  }
  at::parallel_for(0, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Part& part = parts[i];
      PagedAttentionTask<Element> task;
      const int64_t start = (part.row * heads + part.kv_head * group) * d;
      task.queries = queries + start;
      task.outputs = outputs + start;
      task.token_stride = heads * d;
      task.tokens = part.count;
      task.group = group;
      task.first_position = part.chunk->first + part.first;
      task.blocks = part.chunk->sequence->blocks.data();
      task.key_cache = keys;
      task.value_cache = values;
      task.kv_head = part.kv_head;
      PagedAttend(layout, task);
    }
  });
  return out;
}

}  // namespace quartet

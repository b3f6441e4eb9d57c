#include "rollout/kv_cache.h"

#include <cstring>

#include "core/base/huge_pages.h"

namespace quartet {

KvCache::KvCache(const PagedCacheLayout& layout, int64_t layers, int64_t blocks, int64_t element_bytes,
                 at::Device device, Ledger* ledger)
    : layout_(layout),
      layers_(layers),
      blocks_(blocks),
      element_bytes_(element_bytes),
      bytes_(layers * blocks * BlockBytes(layout, element_bytes)),
      entry_(ledger, MemoryCategory::kKvCache, bytes_),
      memory_(static_cast<char*>(device.is_meta() ? nullptr : std::calloc(bytes_, 1)), &std::free) {
  if (memory_ != nullptr) AskForHugePages(memory_.get(), bytes_);
  if (memory_ != nullptr || device.is_meta()) return;
  throw OutOfMemoryError(ledger->ExplainFailure(MemoryCategory::kKvCache, bytes_, MemoryTier::kDevice));
}

void KvCache::Copy(const BlockCopy& copy) {
  if (memory_ == nullptr) return;  // of the meta device
  const int64_t key_bytes = layout_.key_block_numel() * element_bytes_;
  const int64_t value_bytes = layout_.value_block_numel() * element_bytes_;
  for (int64_t layer = 0; layer < layers_; ++layer) {
    std::memcpy(keys(layer) + copy.to * key_bytes, keys(layer) + copy.from * key_bytes, key_bytes);
    std::memcpy(values(layer) + copy.to * value_bytes, values(layer) + copy.from * value_bytes, value_bytes);
  }
}

PagedAttention::PagedAttention(const KvCache* cache, const std::vector<ScheduledChunk>& scheduled) : cache_(cache) {
  for (const ScheduledChunk& chunk : scheduled) {
    chunks_.push_back({.blocks = chunk.sequence->blocks.data(), .first = chunk.first, .count = chunk.count});
  }
}

at::Tensor PagedAttention::Attend(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd) const {
  return AttendInBatch(cache_->layout(), chunks_, cache_->keys(layer_), cache_->values(layer_), q_THd, k_TKd, v_TKd);
}

}  // namespace quartet

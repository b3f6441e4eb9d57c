#include "rollout/engine/cache/kv_cache.h"

#include <ATen/ops/from_blob.h>

#include <cstring>
#include <utility>

#include "core/base/division.h"
#include "core/hardware/huge_pages.h"
#include "core/hardware/meta_device.h"
#include "core/hardware/parallel.h"
#include "core/memory/accounted_tensor.h"

namespace quartet {
namespace {

constexpr int64_t kAlignment = 4096;

}  // namespace

CacheFormat CacheFormatFor(at::Device device) {
  return ComputeDevice(device) == at::kCPU ? CacheFormat::kVectors : CacheFormat::kSlots;
}

int64_t KvCacheShape::block_bytes() const {
  const int64_t numel = format == CacheFormat::kVectors ? layout.block_numel()
                                                        : 2 * layout.block_size * layout.kv_heads * layout.head_dim;
  return layers * numel * static_cast<int64_t>(c10::elementSize(dtype));
}

KvCache::KvCache(const KvCacheShape& shape, int64_t blocks, at::Device device, Ledger* ledger)
    : shape_(shape), blocks_(blocks), device_(device) {
  const PagedCacheLayout& layout = shape.layout;
  const int64_t bytes = blocks * shape.block_bytes();
  if (shape.format == CacheFormat::kSlots) {
    // Zeros: what is not written is read, and counts nothing.
    slots_ = AccountedZeros(ledger, MemoryCategory::kKvCache,
                            bytes / static_cast<int64_t>(c10::elementSize(shape.dtype)), shape.dtype, device)
                 .view({shape.layers, 2, blocks * layout.block_size, layout.kv_heads, layout.head_dim});
    return;
  }
  entry_ = LedgerEntry(ledger, MemoryCategory::kKvCache, bytes);
  if (device.is_meta()) return;
  // Vectors do not lie across lines of the processor's caches then.
  const int64_t rounded = RoundUp(bytes, kAlignment);
  memory_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)));
  if (memory_ == nullptr) {
    throw OutOfMemoryError(ledger->ExplainFailure(MemoryCategory::kKvCache, bytes, MemoryTier::kDevice));
  }
  AskForHugePages(memory_.get(), bytes);
  at::parallel_for(0, bytes, /*grain_size=*/int64_t{8} << 20,
                   [&](int64_t begin, int64_t end) { std::memset(memory_.get() + begin, 0, end - begin); });
}

int64_t KvCache::LayerBlockBytes() const {
  return shape_.layout.block_numel() * static_cast<int64_t>(c10::elementSize(shape_.dtype));
}

char* KvCache::vectors(int64_t layer) const { return memory_.get() + layer * blocks_ * LayerBlockBytes(); }

void KvCache::Copy(const BlockCopy& copy) {
  if (device_.is_meta()) return;
  if (slots_.defined()) {
    const int64_t S = shape_.layout.block_size;
    slots_.narrow(2, copy.to * S, S).copy_(slots_.narrow(2, copy.from * S, S));
    return;
  }
  const int64_t bytes = LayerBlockBytes();
  for (int64_t layer = 0; layer < shape_.layers; ++layer) {
    std::memcpy(vectors(layer) + copy.to * bytes, vectors(layer) + copy.from * bytes, bytes);
  }
}

PagedAttention::PagedAttention(const KvCache* cache, const std::vector<ScheduledChunk>& scheduled, int64_t heads)
    : cache_(cache) {
  std::vector<AttentionChunk> chunks;
  for (const ScheduledChunk& chunk : scheduled) {
    chunks.push_back({.blocks = chunk.sequence->blocks.data(), .first = chunk.first, .count = chunk.count});
  }
  if (cache->shape().format == CacheFormat::kVectors) {
    by_vectors_.emplace(cache->shape().layout, std::move(chunks));
    return;
  }
  const auto& [block_size, kv_heads, head_dim] = cache->shape().layout;
  std::vector<int64_t> slots = SlotsOf(block_size, chunks);
  slots_n_ = at::from_blob(slots.data(), {static_cast<int64_t>(slots.size())}, at::kLong)
                 .to(cache->device(), at::kLong, /*non_blocking=*/false, /*copy=*/true);
  if (CudaPagedAttention::Fits(cache->shape().dtype, head_dim, heads / kv_heads)) {
    by_items_.emplace(block_size, chunks, heads, kv_heads, head_dim, cache->device());
  } else {
    by_slots_.emplace(block_size, chunks, heads, cache->device());
  }
}

at::Tensor PagedAttention::Attend(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd) const {
  if (by_vectors_.has_value()) return by_vectors_->Attend(cache_->vectors(layer_), q_THd, k_TKd, v_TKd);
  const at::Tensor keys = cache_->key_slots(layer_), values = cache_->value_slots(layer_);
  if (by_items_.has_value() && keys.is_cuda()) {
    StoreInSlots(slots_n_, k_TKd, v_TKd, keys, values);
  } else {
    WriteToSlots(slots_n_, k_TKd, v_TKd, keys, values);
  }
  return by_items_.has_value() ? by_items_->Attend(q_THd, keys, values) : by_slots_->Attend(q_THd, keys, values);
}

}  // namespace quartet

// The key/value cache of all layers, and the attention over it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/model/batch_attention.h"
#include "core/model/decoder.h"
#include "core/model/paged_attention.h"
#include "core/zero/ledger.h"
#include "rollout/scheduler.h"

namespace quartet {

// Zeroed by the operating system, which gives pages as they are first written. Of the meta device it counts only.
class KvCache {
 public:
  // Throws OutOfMemoryError.
  KvCache(const PagedCacheLayout& layout, int64_t layers, int64_t blocks, int64_t element_bytes, at::Device device,
          Ledger* ledger);

  // Of one layer.
  static int64_t BlockBytes(const PagedCacheLayout& layout, int64_t element_bytes) {
    return (layout.key_block_numel() + layout.value_block_numel()) * element_bytes;
  }

  const PagedCacheLayout& layout() const { return layout_; }
  // Of one layer, block after block.
  char* keys(int64_t layer) const { return memory_.get() + layer * blocks_ * BlockBytes(layout_, element_bytes_); }
  char* values(int64_t layer) const { return keys(layer) + blocks_ * layout_.key_block_numel() * element_bytes_; }

  // In all layers.
  void Copy(const BlockCopy& copy);

 private:
  PagedCacheLayout layout_;
  int64_t layers_;
  int64_t blocks_;
  int64_t element_bytes_;
  int64_t bytes_;
  LedgerEntry entry_;
  std::unique_ptr<char, decltype(&std::free)> memory_;
};

// The attention of one step: writes the step's keys and values to their places first.
class PagedAttention : public Attention {
 public:
  // Both outlive it.
  PagedAttention(const KvCache* cache, const std::vector<ScheduledChunk>& scheduled);

  void set_layer(int64_t layer) { layer_ = layer; }

  at::Tensor Attend(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd) const override;

 private:
  const KvCache* cache_;
  std::vector<AttentionChunk> chunks_;
  int64_t layer_ = 0;
};

}  // namespace quartet

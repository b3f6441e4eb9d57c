// The key/value cache of all layers, and the attention over it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/kernels/cpu/attention/cpu_paged_attention.h"
#include "core/kernels/cpu/attention/paged_attention_kernel.h"
#include "core/kernels/cuda/cuda_paged_attention.h"
#include "core/kernels/torch_paged_attention.h"
#include "core/memory/ledger.h"
#include "core/model/decoder/decoder.h"
#include "rollout/engine/scheduling/scheduler.h"

namespace quartet {

// How keys and values lie in a block.
enum class CacheFormat {
  kVectors,  // as PagedCacheLayout says, for the CPU's kernel
  kSlots,    // [block_size, K, d] each, for devices
};
// The format for `device`, or for what the meta device stands for.
CacheFormat CacheFormatFor(at::Device device);

struct KvCacheShape {
  PagedCacheLayout layout;
  int64_t layers = 0;
  at::ScalarType dtype = at::kBFloat16;  // or at::kFloat
  CacheFormat format = CacheFormat::kVectors;

  // Of one block, in all layers.
  int64_t block_bytes() const;
};

// On the CPU all of it is written when it is made: a rollout that has started does not run out of memory later, and no
// step waits for the operating system's pages. Of the meta device it counts only.
class KvCache {
 public:
  // Throws OutOfMemoryError.
  KvCache(const KvCacheShape& shape, int64_t blocks, at::Device device, Ledger* ledger);

  const KvCacheShape& shape() const { return shape_; }
  at::Device device() const { return device_; }
  int64_t blocks() const { return blocks_; }

  // kVectors. Of one layer, block after block.
  char* vectors(int64_t layer) const;

  // kSlots. Of one layer, [blocks * block_size, K, d].
  at::Tensor key_slots(int64_t layer) const { return slots_[layer][0]; }
  at::Tensor value_slots(int64_t layer) const { return slots_[layer][1]; }

  // In all layers.
  void Copy(const BlockCopy& copy);

 private:
  int64_t LayerBlockBytes() const;  // of a block of one layer, kVectors

  const KvCacheShape shape_;
  const int64_t blocks_;
  const at::Device device_;
  // kVectors.
  LedgerEntry entry_;
  std::unique_ptr<char, decltype(&std::free)> memory_{nullptr, &std::free};
  // kSlots: [layers, 2, blocks * block_size, K, d].
  at::Tensor slots_;
};

// The attention of one step: writes the step's keys and values to their places first.
class PagedAttention : public Attention {
 public:
  // `cache` outlives it. `heads` query heads.
  PagedAttention(const KvCache* cache, const std::vector<ScheduledChunk>& scheduled, int64_t heads);
  // kSlots: writes to the slots that lie in `slots_n` then, and computes `by_items`.
  PagedAttention(const KvCache* cache, at::Tensor slots_n, CudaPagedAttention by_items)
      : cache_(cache), slots_n_(std::move(slots_n)), by_items_(std::move(by_items)) {}

  void set_layer(int64_t layer) { layer_ = layer; }

  at::Tensor Attend(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd) const override;

 private:
  const KvCache* cache_;
  std::optional<CpuPagedAttention> by_vectors_;  // kVectors
  at::Tensor slots_n_;                           // kSlots: of the step's tokens
  std::optional<CudaPagedAttention> by_items_;   // kSlots, where they fit
  std::optional<TorchPagedAttention> by_slots_;  // kSlots, elsewhere
  int64_t layer_ = 0;
};

}  // namespace quartet

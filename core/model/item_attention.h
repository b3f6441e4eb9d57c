// Attention over a paged cache by the GPU kernel of core/model/paged_kernel.h: bf16, the cache as slots
// (core/model/slot_attention.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/model/paged_attention.h"
#include "core/model/paged_plan.h"

namespace quartet {

// The attention of one forward, the same for each layer. On the meta device it counts what it takes.
class ItemAttention {
 public:
  // Whether there is a kernel for such heads, `group` of which share a key/value head, where the device is CUDA.
  static bool Fits(at::ScalarType dtype, int64_t head_dim, int64_t group) {
    return dtype == at::kBFloat16 && TilesFit(head_dim, group);
  }

  // What the chunks point to is read here only.
  ItemAttention(int64_t block_size, const std::vector<AttentionChunk>& chunks, int64_t heads, int64_t kv_heads,
                int64_t head_dim, at::Device device);

  // As SlotAttention::Attend. Throws where the kernel cannot be started.
  at::Tensor Attend(const at::Tensor& q_THd, const at::Tensor& keys_NKd, const at::Tensor& values_NKd) const;

 private:
  int64_t block_size_;
  int64_t tokens_ = 0;
  int32_t num_items_, num_narrow_, num_merges_;
  at::Tensor items_, merges_, tables_;  // int32, of the plan
  at::Tensor part_sums_, part_scores_;  // fp32
};

}  // namespace quartet

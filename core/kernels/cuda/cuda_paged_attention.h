// Attention over a paged cache by the GPU kernel of core/kernels/cuda/paged_kernel.h: bf16, the cache as slots
// (core/kernels/torch_paged_attention.h). In tests also on the CPU (testing/paged_on_cpu.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/kernels/cpu/attention/paged_attention_kernel.h"
#include "core/kernels/cuda/paged_plan.h"

namespace quartet {

// Whether kernels of this folder read a token's heads where they are: the token may be a part of a longer row.
inline bool HasHeadsEndToEnd(const at::Tensor& x_THd) {
  return x_THd.stride(2) == 1 && x_THd.stride(1) == x_THd.size(2);
}

// A plan in the device's memory. Between two forwards other items of the same number may be put there.
struct DevicePlan {
  int64_t tokens = 0;        // of all chunks
  at::Tensor items, merges;  // int32, AttentionItem and AttentionMerge one behind the other
  at::Tensor tables;         // int32
  int32_t num_items = 0;
  int32_t num_narrow = 0;
  int32_t narrow_rows = 0;  // no narrow item has more
  int32_t num_merges = 0;
  int64_t parts = 0;
};

// The attention of one forward, the same for each layer. On the meta device it counts what it takes.
class CudaPagedAttention {
 public:
  // Whether there is a kernel for such heads, `group` of which share a key/value head, where the device is CUDA.
  static bool Fits(at::ScalarType dtype, int64_t head_dim, int64_t group) {
    return dtype == at::kBFloat16 && TilesFit(head_dim, group);
  }

  // What the chunks point to is read here only.
  CudaPagedAttention(int64_t block_size, const std::vector<AttentionChunk>& chunks, int64_t heads, int64_t kv_heads,
                     int64_t head_dim, at::Device device);
  // Of what lies in `plan` when Attend computes.
  CudaPagedAttention(int64_t block_size, DevicePlan plan, int64_t heads, int64_t head_dim);

  // As TorchPagedAttention::Attend. Throws where the kernel cannot be started.
  at::Tensor Attend(const at::Tensor& q_THd, const at::Tensor& keys_NKd, const at::Tensor& values_NKd) const;

 private:
  int64_t block_size_;
  DevicePlan plan_;
  at::Tensor part_sums_, part_scores_;  // fp32
};

// WriteToSlots (core/kernels/torch_paged_attention.h) by one kernel, on a GPU, of what CudaPagedAttention reads.
void StoreInSlots(const at::Tensor& slots_n, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                  const at::Tensor& keys_NKd, const at::Tensor& values_NKd);

}  // namespace quartet

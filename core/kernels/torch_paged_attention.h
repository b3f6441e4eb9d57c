// Attention over a paged cache in the memory of any device, by LibTorch's operators.
//
// Here a layer's part of the cache is a tensor of slots, [N, K, d] for keys and for values: token t of a sequence lies
// in slot blocks[t / S] * S + t % S, S the block size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/kernels/cpu/attention/paged_attention_kernel.h"

namespace quartet {

// The slots of the chunks' tokens, one behind the other.
std::vector<int64_t> SlotsOf(int64_t block_size, const std::vector<AttentionChunk>& chunks);

// Writes the first slots_n.numel() rows of k and v [T, K, d] to these slots (int64, on the cache's device).
void WriteToSlots(const at::Tensor& slots_n, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                  const at::Tensor& keys_NKd, const at::Tensor& values_NKd);

// The attention of one forward, the same for each layer. Scores and their sums are fp32. Tokens are taken some at a
// time, so that temporaries do not grow with their number.
class TorchPagedAttention {
 public:
  // What the chunks point to is read here only. `heads` query heads.
  TorchPagedAttention(int64_t block_size, const std::vector<AttentionChunk>& chunks, int64_t heads, at::Device device);

  // The chunks' tokens lie end to end in q [T, H, d]. What each sees of its own sequence up to itself, [T, H, d]; rows
  // behind the last chunk's are zeros. All that is seen must have been written, and what else the cache holds must be
  // finite. No gradient.
  at::Tensor Attend(const at::Tensor& q_THd, const at::Tensor& keys_NKd, const at::Tensor& values_NKd) const;

 private:
  // Queries that are computed together: of B sequences Q tokens each, of which one sees at most L.
  struct Tile {
    int64_t B, Q, L;
    at::Tensor rows;        // of q, int64 [B * Q]
    at::Tensor slots_BL;    // int64; where a sequence is shorter, slot 0
    at::Tensor hidden_BQL;  // bool: not seen
  };
  void AddTile(const std::vector<int64_t>& rows, const std::vector<int64_t>& last_positions, const at::Tensor& slots_BL,
               int64_t L);

  const at::Device device_;
  std::vector<Tile> tiles_;
};

}  // namespace quartet

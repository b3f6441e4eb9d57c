// Attention of packed sequences: training and scoring.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "core/kernels/cpu/attention/sequence_rows.h"
#include "core/model/decoder/decoder.h"

namespace quartet {

struct FlashRows;

// Each token attends to itself and those before it in its sequence. On the CPU it computes a token's attention with the
// same bits as generation does (core/kernels/cpu/attention/paged_attention_kernel.h). That matters in bf16: one
// rounding that falls the other way spreads to every activation within a few blocks, and trainer and rollout then
// differ by as much as two independent computations in bf16 do. One thread.
//
// Shared tokens are had once on the CPU and where FlashAttentionTakes says so; elsewhere on a GPU, and in fp64, each
// sequence has copies of them.
class PackedCausalAttention : public Attention {
 public:
  // rows.rows() == T.
  explicit PackedCausalAttention(SequenceRows rows) : rows_(std::move(rows)) {}
  at::Tensor Attend(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd) const override;

 private:
  SequenceRows rows_;
  mutable std::shared_ptr<const FlashRows> flash_rows_;  // once they are read
};

}  // namespace quartet

// What it takes to compute a sequence, for balancing ranks. LibTorch-free.
#pragma once

#include <cstdint>

#include "core/model/model_config.h"

namespace quartet {

// How tokens that sequences of one micro-batch begin with are computed.
enum class Sharing {
  kNone,       // in each
  kBlocks,     // once; attention reads keys in blocks of its cache, which sequences share (CPUs)
  kKeyCopies,  // once; each sequence has copies of their keys while it attends to them (FlashAttention, on GPUs)
};

// Of a model of heads of `head_dim`.
Sharing SharingOn(bool cpu, bool bf16, int64_t head_dim);

// In floating point operations of a forward; a backward with or without recomputation multiplies all of it alike.
struct SequenceCost {
  double per_token = 1;
  double per_token_squared = 0;  // attention
  double per_action = 0;         // the head, which sees the action tokens only
  Sharing sharing = Sharing::kNone;

  double Of(int64_t tokens, int64_t actions) const {
    const auto n = static_cast<double>(tokens);
    return per_token * n + per_token_squared * n * n + per_action * static_cast<double>(actions);
  }
};

// Two operations for each weight of a block's matrices and token; 4 H d for each pair of tokens of which one attends to
// the other, n^2 / 2 pairs in a causal sequence of n; two for each weight of the head and action token. The forward's
// part of Chowdhery et al. 2022 (PaLM), appendix B, with causal attention, and without the embedding, which is looked
// up.
SequenceCost MakeSequenceCost(const ModelConfig& config, HeadKind head, Sharing sharing);

}  // namespace quartet

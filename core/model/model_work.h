// What a model's forward computes and reads at least, from its shapes alone. LibTorch-free.
#pragma once

#include "core/model/model_config.h"

namespace quartet {

// Elements and operations, of the whole model: an operation is a multiplication or an addition.
struct ModelWork {
  double block_weights = 0;    // elements of the matrices of all blocks
  double head_weights = 0;     // of the matrix behind them
  double cached_elements = 0;  // keys and values of one token, in all blocks
  double attention_flops = 0;  // of one query with one key, in all blocks: their product, and the value's part

  // Of the blocks for `tokens`, whose queries meet `pairs` keys together: tokens^2 / 2 where one causal sequence is
  // whole.
  double BlockFlops(double tokens, double pairs) const { return 2 * block_weights * tokens + attention_flops * pairs; }
  // Of what is behind them, for the positions that it is computed at.
  double HeadFlops(double positions) const { return 2 * head_weights * positions; }
};

ModelWork WorkOf(const ModelConfig& model, HeadKind head);

}  // namespace quartet

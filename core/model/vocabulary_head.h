// Log-probabilities of chosen tokens, without a tokens x vocabulary tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace quartet {

// hidden head^T in fp32, [T, V], without gradient: bf16 inputs are multiplied as bf16 and summed and returned as fp32,
// so that logits are not rounded to bf16's three digits. Trainer and rollout both take their logits here.
at::Tensor VocabularyLogits(const at::Tensor& hidden_TD, const at::Tensor& head_VD);

struct TokenLogProbs {
  at::Tensor log_prob_T;  // fp32; differentiable with respect to hidden and head weight
  at::Tensor
      entropy_T;  // fp32, nats, of softmax(logits) at temperature 1; never differentiable. Undefined if not asked for
};

// log_softmax(fp32(hidden head^T) / temperature)[target] for each token. `hidden_TD` after the final norm, `head_VD`
// the vocabulary head's weight, `targets_T` int64.
//
// Works on `chunk_tokens` tokens at a time and recomputes logits in the backward pass: the fp32 peak is
// chunk_tokens x V, whatever T is. (The gradient of the head's weight is summed in fp32 over chunks, then
// cast to the weight's type.)
TokenLogProbs ChunkedLogProbs(const at::Tensor& hidden_TD, const at::Tensor& head_VD, const at::Tensor& targets_T,
                              double temperature, bool with_entropy, int64_t chunk_tokens = 256);

}  // namespace quartet

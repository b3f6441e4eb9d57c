// Log-probabilities of chosen tokens, without a tokens x vocabulary tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace quartet {

// hidden head^T in fp32 (fp64 for fp64 inputs), [T, V], without gradient: of bf16 inputs too, so that logits are not
// rounded to bf16's three digits. Trainer and rollout both take their logits here. The head may be
// packed (core/kernels/linear.h). Its rows from `vocabulary` on stand for no token of the tokenizer (embeddings are
// padded to sizes that products like): their logits are kNoTokenLogit.
at::Tensor VocabularyLogits(const at::Tensor& hidden_TD, const at::Tensor& head_VD, int64_t vocabulary);

// Weighs nothing in softmax and its gradient, at temperatures from 1e-8 on. Finite, so that 0 times it is 0.
inline constexpr float kNoTokenLogit = -1e30f;

// What is asked for beside log-probabilities.
struct EntropyRequest {
  bool wanted = false;
  // Of softmax(logits / temperature).
  double temperature = 1;
  // Costs a second softmax in the backward pass.
  bool differentiable = false;
};

struct TokenLogProbs {
  // fp32 (fp64 for fp64 inputs); differentiable with respect to hidden and head weight.
  at::Tensor log_prob_T;
  // Likewise, of the token's row, in nats; differentiable only if asked for. Undefined if not wanted.
  at::Tensor entropy_T;
};

// Which tokens' log-probabilities are wanted, of which rows of the hidden states. Logits of a row are made once,
// however many tokens want them.
struct HeadTargets {
  int64_t vocabulary = 0;  // token ids that there are (VocabularyLogits); 0: as many as the head has rows
  at::Tensor rows_U;       // int64, each row once; undefined: all rows
  at::Tensor ids_A;        // int64, row by row
  at::Tensor starts_U;     // int64 [U + 1], on the host: row u's are ids_A[starts_U[u]] to ids_A[starts_U[u + 1] - 1].
                           // Undefined: one each
  // Where `starts_U` is defined, int64 [A]: of each token, in the order of MakeHeadTargets, its place among ids_A, and
  // that of its row among rows_U. Else ids_A has that order.
  at::Tensor places_A;
  at::Tensor row_places_A;
};

// Token ids[a] is wanted of row rows[a].
HeadTargets MakeHeadTargets(const std::vector<int64_t>& rows, const std::vector<int64_t>& ids, at::Device device);

// Bytes of the logits of one chunk of tokens: a bound in bytes keeps the peak the same for all vocabularies. Fewer
// would be slower, since each chunk reads all of the head's weight anew, and widens it where bf16 products are
// LibTorch's (core/kernels/linear.h): then a forward with 152,000 words takes a quarter longer at half of it.
inline constexpr int64_t kLogitsChunkBytes = int64_t{128} << 20;

// log_softmax(fp32(hidden head^T) / temperature)[target] for each token that is wanted, in the order of
// MakeHeadTargets. `hidden_TD` after the final norm, `head_VD` the vocabulary head's weight. With fp64 inputs
// everything is fp64.
//
// Works on a chunk of rows at a time, whose logits in fp32 are at most `chunk_bytes` (one row's at the least). The
// last chunk's are kept for the backward pass, which begins with them and makes the others anew: either pass holds less
// than two chunks of anything tokens x V, whatever T is.
// (The gradient of the head's weight is summed in fp32 over chunks, then cast to the weight's type.)
TokenLogProbs ChunkedLogProbs(const at::Tensor& hidden_TD, const at::Tensor& head_VD, const HeadTargets& targets,
                              double temperature, const EntropyRequest& entropy,
                              int64_t chunk_bytes = kLogitsChunkBytes);
// Of row t targets_T[t].
TokenLogProbs ChunkedLogProbs(const at::Tensor& hidden_TD, const at::Tensor& head_VD, const at::Tensor& targets_T,
                              double temperature, const EntropyRequest& entropy,
                              int64_t chunk_bytes = kLogitsChunkBytes);

}  // namespace quartet

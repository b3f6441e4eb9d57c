// Forwards without gradient over this rank's share of a batch. Every rank of the model's group makes the same call
// with as many micro-batches (call.micro_batch_sizes); ranks that run out of sequences take part with empty ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/training/batch/packing.h"
#include "core/training/engine/rank_calls.pb.h"
#include "core/zero/sharded/sharded_model.h"
#include "proto/experience.pb.h"

namespace quartet {

// Per action token: log_softmax(fp32 logits / call.temperature)[token]. One reply a sequence, in their order.
absl::Status ForwardLogProbs(ShardedModel& model, const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                             std::vector<TokenValues>* replies);

// What a scalar head is read at.
enum class ScalarRows {
  kBeforeActions,  // one value per action token: at the token before it
  kLastToken,      // one value a sequence
};
absl::Status ForwardScalars(ShardedModel& model, ScalarRows rows, const ForwardCall& call,
                            const std::vector<TokenSequence>& sequences, std::vector<TokenValues>* replies);

// fp32 (fp64 for fp64 inputs), [A]: the scalar head's output at `rows_A` of the hidden states; head [1, D].
// Differentiable.
at::Tensor ScalarHead(const at::Tensor& hidden_TD, const at::Tensor& head_1D, const at::Tensor& rows_A);
// The same at the row of each action, read once however many actions have it.
at::Tensor ActionScalars(const at::Tensor& hidden_TD, const at::Tensor& head_1D, const HeadTargets& actions);

}  // namespace quartet

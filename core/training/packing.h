// From sequences on the wire to the tensors of one micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/zero/sharded_model.h"
#include "google/protobuf/repeated_field.h"
#include "proto/experience.pb.h"

namespace quartet {

// T tokens, of which A are actions, in the order of the sequences.
struct PackedBatch {
  PackedSequences sequences;
  // int64 [A]: the row whose hidden state speaks of the action token: that of the token before it.
  at::Tensor action_rows_A;
  // int64 [A]: the action tokens' ids.
  at::Tensor action_ids_A;
  // Action tokens of each sequence.
  std::vector<int64_t> actions;
  int64_t num_tokens = 0;
  int64_t num_actions = 0;
};

// Sequences are as CheckSequences (batch_check.h) wants them. None: an empty batch.
PackedBatch Pack(const std::vector<const TokenSequence*>& sequences, at::Device device);

// One of the per-action arrays: &TrainingSequence::advantages.
using ActionField = const google::protobuf::RepeatedField<float>& (TrainingSequence::*)() const;

// fp32 [A]: that array of all `sequences`, end to end.
at::Tensor Concatenate(const std::vector<const TrainingSequence*>& sequences, ActionField field, at::Device device);

// The sequences of micro-batch `m`: items [m * size, (m + 1) * size) of `items`, as far as there are.
template <typename Item>
std::vector<const Item*> MicroBatch(const std::vector<Item>& items, uint64_t m, int size) {
  std::vector<const Item*> part;
  for (uint64_t i = m * size; i < (m + 1) * size && i < items.size(); ++i) part.push_back(&items[i]);
  return part;
}

}  // namespace quartet

// From sequences on the wire to the tensors of one micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/model/decoder/vocabulary_head.h"
#include "core/training/batch/sequence_cost.h"
#include "core/zero/sharded/sharded_model.h"
#include "google/protobuf/repeated_field.h"
#include "proto/experience.pb.h"

namespace quartet {

// Tokens of which A are actions, in the order of the given sequences.
struct PackedBatch {
  // The given ones, ordered by their ids, so that those that begin alike are neighbours, and what they share is there
  // once; without sharing in their own order, and each whole. Behind them there may be one
  // more sequence, whose hidden states mean nothing: it brings the tokens to a number that PaddedRows
  // (core/kernels/row_padding.h) gives.
  PackedSequences sequences;
  // The action tokens, each wanted of the row whose hidden state speaks of it: that of the token before it. Sequences
  // that share that token share the row.
  HeadTargets targets;
  at::Tensor last_rows_S;        // int64, of each given sequence the row of its last token
  std::vector<int64_t> actions;  // of each given sequence
  int64_t num_tokens = 0;        // of the given sequences, shared ones each time
  int64_t num_computed = 0;      // of them, shared ones once
  int64_t num_actions = 0;
};

// Sequences are as CheckSequences (batch_check.h) wants them. None: an empty batch.
PackedBatch Pack(const std::vector<const TokenSequence*>& sequences, at::Device device, Sharing sharing);
// For this model.
PackedBatch Pack(const std::vector<const TokenSequence*>& sequences, const ShardedModel& model);

// fp32 [A]: the array of that name of all `sequences`, end to end. Each has it (CheckTrainingSequences).
at::Tensor Concatenate(const std::vector<const TrainingSequence*>& sequences, std::string_view array,
                       at::Device device);

// Cuts `items` into micro-batches as the leader has decided: the first sizes[0] of them, the next sizes[1], ...
// INTERNAL where the sizes do not add up to the items.
template <typename Item>
absl::StatusOr<std::vector<std::vector<const Item*>>> CutMicroBatches(
    const std::vector<Item>& items, const google::protobuf::RepeatedField<uint32_t>& sizes) {
  const uint64_t sum = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
  if (sum != items.size()) {
    return absl::InternalError(absl::StrCat("micro-batches of ", sum, " sequences together for ", items.size()));
  }
  std::vector<std::vector<const Item*>> micro_batches;
  const Item* next = items.data();
  for (const uint32_t size : sizes) {
    std::vector<const Item*>& part = micro_batches.emplace_back();
    for (uint32_t i = 0; i < size; ++i) part.push_back(next++);
  }
  return micro_batches;
}

}  // namespace quartet

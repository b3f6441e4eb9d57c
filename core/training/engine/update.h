// A rank's part of an optimizer step: what the policy trainer and the critic trainer have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/training/batch/packing.h"
#include "core/training/engine/rank_calls.pb.h"
#include "core/zero/trainable_model.h"
#include "google/protobuf/repeated_field.h"
#include "proto/experience.pb.h"

namespace quartet {

// The loss of one micro-batch, `part` packed as `batch`, under autograd (TrainableModel::ForwardBackward).
using MicroBatchLoss =
    std::function<at::Tensor(const std::vector<const TrainingSequence*>& part, const PackedBatch& batch,
                             const at::Tensor& hidden_TD, const at::Tensor& head_weight)>;

struct Accumulated {
  double loss = 0;
  uint64_t action_tokens = 0;
  uint64_t tokens = 0;
  uint64_t computed_tokens = 0;  // what sequences of one micro-batch share, once
};

// Adds the gradient of this rank's sequences to the model's, micro-batch by micro-batch (rank_calls.proto). All ranks
// have equally many. INTERNAL, before any of them, where the sizes do not add up to the sequences.
absl::StatusOr<Accumulated> AccumulateGradient(TrainableModel& model, const std::vector<TrainingSequence>& sequences,
                                               const google::protobuf::RepeatedField<uint32_t>& micro_batch_sizes,
                                               const MicroBatchLoss& loss);

// AccumulateGradient, then the optimizer's step. Fills in what no loss does of `sums`.
absl::Status UpdateModel(TrainableModel& model, const UpdateCall& call, const std::vector<TrainingSequence>& sequences,
                         double max_norm, const MicroBatchLoss& loss, UpdateSums* sums);

}  // namespace quartet

// A rank's part of an optimizer step: what the policy trainer and the critic trainer have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/status_macros.h"
#include "core/training/packing.h"
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
};

// Adds the gradient of this rank's sequences to the model's, micro-batch by micro-batch (rank_calls.proto). All ranks
// have equally many. INTERNAL, before any of them, where the sizes do not add up to the sequences.
absl::StatusOr<Accumulated> AccumulateGradient(TrainableModel& model, const std::vector<TrainingSequence>& sequences,
                                               const google::protobuf::RepeatedField<uint32_t>& micro_batch_sizes,
                                               const MicroBatchLoss& loss);

// AccumulateGradient, then the optimizer's step. Fills in what the Sums of both trainers have in common.
template <typename Call, typename Sums>
absl::Status TakeStep(TrainableModel& model, const Call& call, const std::vector<TrainingSequence>& sequences,
                      double max_norm, const MicroBatchLoss& loss, Sums* sums) {
  QUARTET_ASSIGN_OR_RETURN(const Accumulated done,
                           AccumulateGradient(model, sequences, call.micro_batch_sizes(), loss));
  const StepResult step = model.Step(call.header().learning_rate(), max_norm);
  sums->set_loss(done.loss);
  sums->set_action_tokens(done.action_tokens);
  sums->set_tokens(done.tokens);
  sums->set_grad_norm(step.grad_norm);
  sums->set_skipped(step.skipped);
  sums->set_optimizer_steps(model.steps());
  return absl::OkStatus();
}

}  // namespace quartet

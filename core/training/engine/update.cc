#include "core/training/engine/update.h"

#include "core/base/status_macros.h"

namespace quartet {

absl::StatusOr<Accumulated> AccumulateGradient(TrainableModel& model, const std::vector<TrainingSequence>& sequences,
                                               const google::protobuf::RepeatedField<uint32_t>& micro_batch_sizes,
                                               const MicroBatchLoss& loss) {
  QUARTET_ASSIGN_OR_RETURN(const auto micro_batches, CutMicroBatches(sequences, micro_batch_sizes));
  Accumulated done;
  for (const std::vector<const TrainingSequence*>& part : micro_batches) {
    std::vector<const TokenSequence*> tokens;
    tokens.reserve(part.size());
    for (const TrainingSequence* sequence : part) tokens.push_back(&sequence->tokens());
    const PackedBatch batch = Pack(tokens, model.model());
    done.loss +=
        model.ForwardBackward(batch.sequences, [&](const at::Tensor& hidden_TD, const at::Tensor& head_weight) {
          return loss(part, batch, hidden_TD, head_weight);
        });
    done.action_tokens += batch.num_actions;
    done.tokens += batch.num_tokens;
    done.computed_tokens += batch.num_computed;
  }
  return done;
}

absl::Status UpdateModel(TrainableModel& model, const UpdateCall& call, const std::vector<TrainingSequence>& sequences,
                         double max_norm, const MicroBatchLoss& loss, UpdateSums* sums) {
  QUARTET_ASSIGN_OR_RETURN(const Accumulated done,
                           AccumulateGradient(model, sequences, call.micro_batch_sizes(), loss));
  const StepResult step = model.Step(call.learning_rate(), max_norm);
  sums->set_loss(done.loss);
  sums->set_action_tokens(done.action_tokens);
  sums->set_tokens(done.tokens);
  sums->set_computed_tokens(done.computed_tokens);
  sums->set_grad_norm(step.grad_norm);
  sums->set_skipped(step.skipped);
  sums->set_optimizer_steps(model.steps());
  return absl::OkStatus();
}

}  // namespace quartet

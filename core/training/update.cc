#include "core/training/update.h"

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
    const PackedBatch batch = Pack(tokens, model.model().options().device);
    done.loss +=
        model.ForwardBackward(batch.sequences, [&](const at::Tensor& hidden_TD, const at::Tensor& head_weight) {
          return loss(part, batch, hidden_TD, head_weight);
        });
    done.action_tokens += batch.num_actions;
    done.tokens += batch.num_tokens;
  }
  return done;
}

}  // namespace quartet

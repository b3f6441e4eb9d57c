#include "critic_trainer/critic_engine.h"

#include "core/base/status_macros.h"
#include "core/training/engine/forward.h"
#include "core/training/engine/update_call.h"
#include "critic_trainer/reward_model_loss.h"
#include "critic_trainer/value_loss.h"
#include "proto/critic_trainer.pb.h"

namespace quartet {

absl::StatusOr<std::unique_ptr<CriticEngine>> CriticEngine::Load(const TrainerConfig& config, uint64_t seed,
                                                                 const RankContext& context) {
  std::unique_ptr<CriticEngine> engine(new CriticEngine);
  QUARTET_RETURN_IF_ERROR(engine->TrainerEngine::Load("critic", HeadKind::kScalar, config, seed, context));
  return engine;
}

absl::Status CriticEngine::Forward(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                                   std::vector<TokenValues>* replies) {
  const ScalarRows rows = call.last_token() ? ScalarRows::kLastToken : ScalarRows::kBeforeActions;
  return Compute("values", [&] { return ForwardScalars(model(), rows, call, sequences, replies); });
}

absl::Status CriticEngine::Update(const UpdateCall& call, const std::vector<TrainingSequence>& sequences,
                                  UpdateSums* sums) {
  CriticUpdateHeader header;
  QUARTET_RETURN_IF_ERROR(ParseHeader(call, &header));
  return TakeStep(
      call, sequences,
      [&](const std::vector<const TrainingSequence*>& part, const PackedBatch& batch, const at::Tensor& hidden_TD,
          const at::Tensor& head_1D) {
        return header.loss() == CriticUpdateHeader::LOSS_PAIRWISE
                   ? RewardModelLoss(part, batch, hidden_TD, head_1D, sums)
                   : ValueLoss(header, part, batch, hidden_TD, head_1D, sums);
      },
      sums);
}

}  // namespace quartet

// One rank's part of the critic, or of a reward model: values and their updates. LibTorch behind, not in, this header;
// knows no gRPC.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/training/engine/trainer_engine.h"

namespace quartet {

class CriticEngine final : public TrainerEngine {
 public:
  // Of config.critic. The head is the folder's, a new one where it says of none; an lm_head is left alone. `config` is
  // resolved.
  static absl::StatusOr<std::unique_ptr<CriticEngine>> Load(const TrainerConfig& config, uint64_t seed,
                                                            const RankContext& context);

  // Values: of the state before each action token or, with call.last_token, of each sequence.
  absl::Status Forward(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                       std::vector<TokenValues>* replies) override;
  // By a CriticUpdateHeader.
  absl::Status Update(const UpdateCall& call, const std::vector<TrainingSequence>& sequences,
                      UpdateSums* sums) override;

 private:
  CriticEngine() = default;
};

}  // namespace quartet

// One rank's part of the policy: log-probabilities, updates, publication. LibTorch behind, not in, this header; knows
// no gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/training/engine/trainer_engine.h"
#include "policy_trainer/weight_publisher.h"

namespace quartet {

class PolicyEngine final : public TrainerEngine {
 public:
  // Of config.actor. `config` is resolved, `vocabulary` as in ShardedModelOptions.
  static absl::StatusOr<std::unique_ptr<PolicyEngine>> Load(const TrainerConfig& config, uint64_t seed,
                                                            const RankContext& context, int64_t vocabulary = 0);

  // Log-probabilities at call.temperature.
  absl::Status Forward(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                       std::vector<TokenValues>* replies) override;
  // By a PolicyUpdateHeader, as CheckPolicyUpdate wants it.
  absl::Status Update(const UpdateCall& call, const std::vector<TrainingSequence>& sequences,
                      UpdateSums* sums) override;

  // A copy of what this rank owns of the present weights, in the type of actor.dtype. No element is owned by two ranks.
  absl::StatusOr<std::shared_ptr<const PublishedWeights>> Publish(uint64_t version);
  // Of the model that adapters, where those are trained, belong to (ShardedModel::folder_hash).
  uint64_t base_hash() const;

 private:
  PolicyEngine() = default;
  std::shared_ptr<SnapshotMemory> snapshots_;
};

}  // namespace quartet

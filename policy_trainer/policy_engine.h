// One rank's part of the policy: log-probabilities, updates, publication, checkpoints. LibTorch behind, not in, this
// header; knows no gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/service/rank_context.h"
#include "core/training/rank_calls.pb.h"
#include "policy_trainer/policy_rank.pb.h"
#include "policy_trainer/weight_publisher.h"
#include "proto/common.pb.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// One thread. Every rank makes the same calls in the same order, with the same header but for the sizes of its
// micro-batches, of which there are equally many; sequences are this rank's. What clients say must have been checked:
// sequences by core/training/batch_check.h, headers by policy_checks.h.
//
// An error that comes from LibTorch or a collective is INTERNAL; the ranks are not in step afterwards.
class PolicyEngine {
 public:
  // Loads config.actor.pretrain and config.actor.load_checkpoint, sharded over the ranks of `context`, which must
  // outlive the engine. Collective. `config` is resolved.
  static absl::StatusOr<std::unique_ptr<PolicyEngine>> Load(const RunConfig& config, const RankContext& context);
  ~PolicyEngine();

  // Per action token, under the present weights and call.temperature. Collective.
  absl::Status LogProbs(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                        std::vector<TokenValues>* replies);

  // One optimizer step. Collective.
  absl::Status Update(const PolicyUpdateCall& call, const std::vector<TrainingSequence>& sequences,
                      PolicyUpdateSums* sums);

  // A copy of what this rank owns of the present weights, in the type of actor.dtype. No element is owned by two ranks.
  absl::StatusOr<std::shared_ptr<const PublishedWeights>> Publish(uint64_t version);

  // Writes folders that must not exist. Collective. An error of any rank is every rank's and leaves them in step.
  absl::Status Save(const SaveCall& call, SaveSummary* summary);

  RankInfo Info() const;

 private:
  struct Impl;
  explicit PolicyEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet

// One rank's part of the critic: values and their updates. LibTorch behind, not in, this header; knows no gRPC.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/service/rank_context.h"
#include "core/training/rank_calls.pb.h"
#include "critic_trainer/critic_rank.pb.h"
#include "proto/common.pb.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// One thread. Every rank makes the same calls in the same order, with the same header but for the sizes of its
// micro-batches, of which there are equally many; sequences are this rank's and have been checked
// (core/training/batch_check.h).
//
// An error that comes from LibTorch or a collective is INTERNAL; the ranks are not in step afterwards.
class CriticEngine {
 public:
  // Loads config.critic.pretrain, sharded over the ranks of `context`, which must outlive the engine. The head is the
  // folder's score.weight, else a new one drawn with config.seed; an lm_head is left alone. Collective. `config` is
  // resolved.
  static absl::StatusOr<std::unique_ptr<CriticEngine>> Load(const RunConfig& config, const RankContext& context);
  ~CriticEngine();

  // For each action token, the value of the state before it. Collective.
  absl::Status Values(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                      std::vector<TokenValues>* replies);

  // One optimizer step on the clipped value loss. Collective.
  absl::Status Update(const CriticUpdateCall& call, const std::vector<TrainingSequence>& sequences,
                      CriticUpdateSums* sums);

  // Writes folders that must not exist. Collective. An error of any rank is every rank's and leaves them in step.
  absl::Status Save(const SaveCall& call, SaveSummary* summary);

  RankInfo Info() const;

 private:
  struct Impl;
  explicit CriticEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet

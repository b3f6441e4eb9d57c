// One rank's part of the scorer's models: the frozen reference and the reward models. LibTorch behind, not in, this
// header; knows no gRPC.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/model/scoring_model.h"
#include "core/rank/rank_context.h"
#include "core/training/engine/rank_calls.pb.h"
#include "proto/common.pb.h"
#include "proto/experience.pb.h"

namespace quartet {

// One thread. Every rank makes the same calls in the same order, with the same header but for the sizes of its
// micro-batches, of which there are equally many; sequences are this rank's and have been checked
// (core/training/batch/batch_check.h).
//
// An error that comes from LibTorch or a collective is INTERNAL; the ranks are not in step afterwards.
class ScorerEngine {
 public:
  // Loads the models, sharded over the ranks of `context`, which must outlive the engine. A reward model without its
  // head is an error. `vocabulary` as in ShardedModelOptions, of all models. Collective.
  static absl::StatusOr<std::unique_ptr<ScorerEngine>> Load(const std::vector<ScoringModel>& models,
                                                            const RankContext& context, int64_t vocabulary = 0);
  ~ScorerEngine();

  // Per action token, under the reference model and call.temperature. Collective.
  absl::Status ReferenceLogProbs(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                                 std::vector<TokenValues>* replies);

  // One value a sequence: the scalar head of reward.source[call.model] at its last token. Collective.
  absl::Status Rewards(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                       std::vector<TokenValues>* replies);

  // Parameters are those of all models together.
  RankInfo Info() const;

 private:
  struct Impl;
  explicit ScorerEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet

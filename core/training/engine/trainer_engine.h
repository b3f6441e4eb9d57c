// One rank's part of a trainer: what the policy's and the critic's have in common, which is all but a head and a loss.
// LibTorch behind, not in, this header; knows no gRPC.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/model/parameter_layout.h"
#include "core/rank/rank_context.h"
#include "core/training/engine/rank_calls.pb.h"
#include "proto/common.pb.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace at {
class Tensor;
}

namespace quartet {

class Ledger;
class ShardedModel;
struct PackedBatch;

// One thread. Every rank makes the same calls in the same order, with the same header but for the sizes of its
// micro-batches, of which there are equally many; sequences are this rank's. What clients say must have been checked
// (core/training/batch/batch_check.h).
//
// An error that comes from LibTorch or a collective is INTERNAL; several ranks are not in step afterwards.
class TrainerEngine {
 public:
  TrainerEngine(const TrainerEngine&) = delete;
  TrainerEngine& operator=(const TrainerEngine&) = delete;
  virtual ~TrainerEngine();

  // A number for each action token (log-probabilities; values) under the present weights. Collective.
  virtual absl::Status Forward(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                               std::vector<TokenValues>* replies) = 0;

  // One optimizer step. Collective. After an error the engine must not be used any more: the rank has to end.
  virtual absl::Status Update(const UpdateCall& call, const std::vector<TrainingSequence>& sequences,
                              UpdateSums* sums) = 0;

  // Writes folders that must not exist. Collective. An error of any rank is every rank's and leaves them in step.
  absl::Status Save(const SaveCall& call, SaveSummary* summary);

  // Gives back what only a call needs: memory that its temporaries had, and that is kept for the next call's; with
  // sleep_offload what only Update needs, too.
  absl::Status Sleep();

  RankInfo Info() const;

 protected:
  TrainerEngine();

  // Loads config.pretrain and config.load_checkpoint, sharded over the ranks of `context`, which must outlive this.
  // `name` is the model's in messages. A scalar head that the folder does not have is drawn with `seed`. `vocabulary`
  // as in ShardedModelOptions. Collective.
  absl::Status Load(const std::string& name, HeadKind head, const TrainerConfig& config, uint64_t seed,
                    const RankContext& context, int64_t vocabulary = 0);
  ShardedModel& model() const;
  ShardedModel& trained() const;  // of it: TrainableModel::trained
  Ledger& ledger() const;

  // Does `work`. What it throws, doing `what`, becomes a status.
  absl::Status Compute(const std::string& what, const std::function<absl::Status()>& work) const;

  // The loss of one micro-batch, `part` packed as `batch`, under autograd.
  using Loss = std::function<at::Tensor(const std::vector<const TrainingSequence*>& part, const PackedBatch& batch,
                                        const at::Tensor& hidden_TD, const at::Tensor& head_weight)>;
  absl::Status TakeStep(const UpdateCall& call, const std::vector<TrainingSequence>& sequences, const Loss& loss,
                        UpdateSums* sums);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet

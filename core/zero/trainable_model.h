// A sharded model with gradients and an optimizer: what the policy trainer and the critic trainer share.
//
//   group        parameters that are gathered together: the embedding, a block, the final norm with the head
//   shard        a rank's part of a group, flat
//   master       the fp32 copy of a shard that the optimizer writes
//   mesh         the ranks: `shard` those that have one model between them, `replica` those with the same shard
//   micro-batch  sequences of one forward and backward
//   step         all micro-batches of one optimizer step
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/zero/optimizer/optimizer.h"
#include "core/zero/sharded/sharded_model.h"

namespace quartet {

struct TrainableModelOptions {
  ShardedModelOptions model;  // trainable is set
  // Its weight decay is not applied to norms and biases. Null: the default, with its defaults.
  std::shared_ptr<const Optimizer> optimizer;
  bool gradient_checkpointing = true;
  // The blocks' inputs, which checkpointing keeps, wait for the backward pass in host memory.
  bool activation_offload = false;
  // Micro-batches are added up whole on each rank, in fp32, and reduced by Step: less traffic for more memory.
  bool no_sync = false;
  // It begins as OffloadState leaves it.
  bool begins_offloaded = false;
  // Above 0, and below 1: an exponential moving average of the weights over steps is kept, in host memory.
  double ema_decay = 0;
};

struct StepResult {
  double grad_norm = 0;  // of the whole gradient over all ranks, before clipping
  bool skipped = false;  // the norm was not finite; nothing was changed, on any rank
};

// Of a micro-batch: under autograd, from the hidden states after the final norm, [T, D], and the head's weight, a
// scalar, fp32 (fp64 for a model that computes in it).
using LossFunction = std::function<at::Tensor(const at::Tensor& hidden_TD, const at::Tensor& head_weight)>;

// A part of a group's training state.
struct NamedState {
  std::string name;  // "master", then as Optimizer::state() has it, then with ema_decay "ema"
  // fp32, flat, laid out as trained().shard(group) is: trained().parameter_shards() says what lies where.
  at::Tensor values;
};

// One thread; all ranks in step. A sequence of micro-batches (the same number on every rank; an empty batch where a
// rank has none left), then Step. Of a folder of adapters those are trained, and nothing else.
class TrainableModel {
 public:
  static absl::StatusOr<std::unique_ptr<TrainableModel>> Load(const std::string& folder,
                                                              const TrainableModelOptions& options, ProcessGroup* group,
                                                              Ledger* ledger);
  // Parameters, gradients and optimizer state are sharded over mesh->shard() and the same on all of mesh->replica():
  // gradients are reduced within the shards by micro-batch, between replicas once a step.
  static absl::StatusOr<std::unique_ptr<TrainableModel>> Load(const std::string& folder,
                                                              const TrainableModelOptions& options, Mesh* mesh,
                                                              Ledger* ledger);
  ~TrainableModel();

  ShardedModel& model();
  // What is trained: model(), or its adapters. Groups below are its.
  ShardedModel& trained();

  // Forward and backward of one micro-batch; adds to the gradient. Gradients are summed over ranks and micro-batches:
  // the loss must carry its normaliser. Returns the loss of this rank's micro-batch. An empty batch (T = 0) takes part
  // in the collectives only, without calling `loss`. After an exception, here or in Step, what is here is no state that
  // training has ever passed through: it must not be used, published or saved, and the process has to end.
  double ForwardBackward(const PackedSequences& batch, const LossFunction& loss);

  // Clips to max_norm (0 = off), takes the optimizer's step, clears the gradient.
  StepResult Step(double learning_rate, double max_norm);

  // Between steps: what only they need beside the weights has no memory on the device until the next micro-batch, or
  // Step. The optimizer's state waits in host memory, the gradient, which is zero, nowhere.
  void OffloadState();

  const Optimizer& optimizer() const;
  int64_t steps() const;  // applied, skipped ones not counted

  // What a restart needs of `group` beside steps(). The tensors themselves, to be read, or to be written and then put
  // in use by Restore.
  std::vector<NamedState> state(int group) const;
  // Takes over what was written into the tensors of state() on every rank, as the state after `steps` steps.
  // Collective.
  void Restore(int64_t steps);

  // The gradient so far, laid out as trained().shard(group) is. What Step itself still sums over ranks (all of it at
  // stage 0 and with no_sync; replicas) is not yet in it. Not between OffloadState and the next micro-batch.
  const at::Tensor& gradient(int group) const;

  // Writes a Hugging Face folder (of adapters one of theirs, with the tokenizer of TokenizerFolder): config.json and
  // tokenizer files as the source folder had them at Load, weights in the compute type as safetensors, with an index
  // where they are several files. Streamed: rank 0 writes one gathered group after the other, no rank ever holds the
  // whole model. `folder` must not exist; it appears all at once (temporary name, fsync, rename). Collective. Returns
  // the bytes written. An error of rank 0 (RESOURCE_EXHAUSTED: the disk is full) is every rank's, leaves nothing behind
  // and the ranks in step; UNAVAILABLE where a collective failed.
  absl::StatusOr<int64_t> Save(const std::string& folder);
  // The same of the weights' average. FAILED_PRECONDITION where none is kept: without ema_decay.
  bool keeps_average() const;
  absl::StatusOr<int64_t> SaveAverage(const std::string& folder);

 private:
  struct Impl;
  explicit TrainableModel(std::unique_ptr<Impl> impl);
  static absl::StatusOr<std::unique_ptr<TrainableModel>> Load(
      const TrainableModelOptions& options,
      const std::function<absl::StatusOr<std::unique_ptr<ShardedModel>>(const ShardedModelOptions&)>& load);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet

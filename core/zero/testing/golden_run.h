// For tests: the runs of tools/golden/make_training_golden.py, and what trains a model through them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/mesh.h"
#include "core/comm/process_group.h"
#include "core/memory/ledger.h"
#include "core/model/model_config.h"
#include "core/zero/trainable_model.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The folder of the model that most tests train.
inline constexpr char kLlama[] = "core/zero/testdata/llama";

using TokenIds = std::vector<std::vector<int64_t>>;

// Twenty steps of one model, as transformers with torch's optimizer takes them.
struct GoldenRun {
  std::string folder;  // of the model
  TokenIds sequences;  // eight, every step's
  std::vector<double> losses, grad_norms;
  double average_loss;  // with the moving average of the weights after the last step, of `trainer.ema_decay()`
  TrainerConfig trainer;
  double learning_rate, max_norm;  // of it

  // On TestDevice(), without the average.
  TrainableModelOptions Fp32(int stage, bool checkpointing) const;
};

// By the names that the script has for them, MODELS and OPTIMIZERS.
GoldenRun ReadGoldenRun(const std::string& model, const std::string& optimizer = "adam");

PackedSequences PackIds(const TokenIds& sequences);

// Minus the log-probabilities of all tokens but the first of each sequence, times `weight`.
at::Tensor NextTokenLoss(const PackedSequences& batch, const at::Tensor& hidden_TD, const at::Tensor& head_VD,
                         double weight);

// Throws where it cannot be loaded.
std::unique_ptr<TrainableModel> LoadOrDie(const std::string& folder, const TrainableModelOptions& options,
                                          ProcessGroup& group, Ledger& ledger);

// The gradient of a mean over all `sequences`, of which this rank takes every size-th, `micro` at a time. Returns their
// loss.
double Accumulate(TrainableModel& model, const TokenIds& sequences, int micro);

// Ranks of a mesh, each with `shard_size` ranks a replica (0: all).
void RunMesh(int ranks, int shard_size, const std::function<void(Mesh&)>& body);

// Sixteen small blocks.
ModelConfig DeepConfig();

// A folder of this test's own that does not exist.
std::string FreshFolder(const std::string& name);

// Of DeepConfig's vocabulary.
inline const TokenIds kFewSequences = {{1, 2, 3, 4, 5, 6}, {7, 8, 9}, {10, 11, 12, 13}, {14, 15}};

}  // namespace quartet

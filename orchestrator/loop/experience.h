// What one PPO step learns from: the generated sequences and all that is known of their tokens. No I/O.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/run_folder/metrics.h"
#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"
#include "proto/run_config.pb.h"
#include "proto/scorer.pb.h"

namespace quartet {

// One generated sequence. Arrays have one entry per action token; those of a quantity that the run does not use are
// empty.
struct Experience {
  int64_t prompt = 0;    // which prompt of the data
  TokenSequence tokens;  // its index is the position in the batch
  std::string response;  // decoded, without special tokens
  bool truncated = false;

  std::vector<float> rollout_log_probs;
  std::vector<float> log_probs;  // before the update
  std::vector<float> reference_log_probs;
  std::vector<float> values;  // before the update
  float reward = 0;           // before clamping
  std::map<std::string, float> reward_parts;

  std::vector<float> kl;
  std::vector<float> advantages;
  std::vector<float> returns;

  int64_t action_tokens() const { return static_cast<int64_t>(rollout_log_probs.size()); }
};

// Fills in kl, advantages and returns as algorithm.* says (docs/algorithms.md), in the order: KL, clamped rewards,
// GAE, normalisation over the batch.
absl::Status ComputeAdvantages(const AlgorithmConfig& algorithm, double kl_coefficient, std::vector<Experience>* batch);

// Absolute differences of the trainer's and the rollout's log-probabilities over all action tokens.
struct LogProbDifference {
  double mean = 0;
  double p99 = 0;
  double max = 0;
};
LogProbDifference CompareLogProbs(const std::vector<Experience>& batch);

// Mean over all action tokens; nothing without a reference model.
std::optional<double> MeanKl(const std::vector<Experience>& batch);

// Cuts the batch into the optimizer steps of one epoch: shuffled by (seed, step, epoch), then consecutive chunks of
// train_batch_size sequences, the last one perhaps smaller. Loss weights are those of each chunk by itself.
absl::StatusOr<std::vector<std::vector<TrainingSequence>>> MakeOptimizerSteps(const RunConfig& config,
                                                                              const std::vector<Experience>& batch,
                                                                              int64_t step, int64_t epoch);

// reward/*, kl/mean, response_length/mean, rollout/*, critic/explained_variance and tokens/generated.
void AddExperienceMetrics(const std::vector<Experience>& batch, Metrics* metrics);

}  // namespace quartet

// What one PPO step learns from: the generated sequences and all that is known of their tokens. No I/O.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/rl/kl.h"
#include "core/run_folder/records/metrics.h"
#include "orchestrator/data/prompts.h"
#include "proto/experience.pb.h"
#include "proto/policy_trainer.pb.h"
#include "proto/rollout.pb.h"
#include "proto/run_config.pb.h"
#include "proto/scorer.pb.h"

namespace quartet {

// An answer to a prompt, as one token sequence or as the several that an episode of an agent leaves. Arrays have one
// entry per action token of all sequences, end to end; those of a quantity that the run does not use are empty.
struct Experience {
  std::shared_ptr<const PromptRecord> prompt;  // that it answers
  int64_t group = 0;                           // answers of one batch to the same prompt have the same
  // At least one; the last ends with the answer that was asked for last. A token that was drawn is an action in the
  // first that has it, and context in the others, so that none counts twice.
  std::vector<TokenSequence> sequences;
  std::string response;  // decoded, without special tokens
  bool truncated = false;
  std::string conversation;  // with an agent: the messages of the last sequence, a JSON list
  bool excluded = false;     // from the loss

  // As the rollout computed them: of the whole distribution, as log_probs are, and of what it drew from, after
  // penalties and truncation.
  std::vector<float> rollout_log_probs;
  std::vector<float> sampled_log_probs;
  std::vector<float> log_probs;  // before the update; the rollout's where they stand for the trainer's
  std::vector<float> reference_log_probs;
  std::vector<float> values;  // before the update
  double reward = 0;          // with length penalties, before it is clamped
  // Where sources give rewards of tokens: what of it each has.
  std::vector<float> token_rewards;
  double score = 0;  // what groups are filtered by
  std::map<std::string, float> reward_parts;
  std::map<std::string, float> extra_logs;  // of sources that give them

  std::vector<float> kl;
  std::vector<float> given_advantages;  // by algorithm.advantage_command
  std::vector<float> advantages;
  std::vector<float> returns;
  double shaped_reward = 0;     // that advantages are made of: less a baseline, clipped
  bool reward_clipped = false;  // and changed by that

  // The one that ends with what the answer ends with.
  const TokenSequence& last_sequence() const { return sequences.back(); }
  int64_t action_tokens() const { return static_cast<int64_t>(rollout_log_probs.size()); }
};

// Fills in kl, advantages, returns, shaped_reward and reward_clipped as algorithm.* says (docs/algorithms.md).
absl::Status ComputeAdvantages(const AlgorithmConfig& algorithm, double kl_coefficient, std::vector<Experience>* batch);

// Whether each optimizer step is under the weights that generated, so that "auto" takes the update's own
// log-probabilities for the old ones.
bool TakesOwnOldLogProbs(const RunConfig& config);

// Over all action tokens, or as algorithm.kl.kl_mean says; nothing without a reference model.
std::optional<double> BatchKl(const std::vector<Experience>& batch, KlMean mean = KlMean::kToken);

// An array that a loss reads (core/rl/options/token_arrays.h), and what it is of an experience.
struct TrainingArray {
  std::string_view name;
  std::vector<float> Experience::*from;
  // Of each sequence times the action tokens of the experience over its own.
  bool scaled_to_answer = false;
};
// What the losses of this run's trainers read, that of the policy being `loss`; loss weights come by themselves.
std::vector<TrainingArray> PolicyArrays(const RunConfig& config, const PolicyLossConfig& loss);
std::vector<TrainingArray> CriticArrays();

// An optimizer step: experiences of the batch by their positions, and the weight of each of their tokens in the loss.
struct OptimizerStep {
  std::vector<size_t> positions;
  std::vector<float> weights;
};

// Cuts the batch into `count` optimizer steps of one epoch, of as many experiences each as can be: shuffled by (seed,
// step, epoch), then one after the other. Loss weights are those of each step by itself, an experience with all its
// sequences counting once; those that are excluded or have no action are in none, so that a step may be empty.
absl::StatusOr<std::vector<OptimizerStep>> CutIntoOptimizerSteps(const RunConfig& config,
                                                                 const std::vector<Experience>& batch, int64_t step,
                                                                 int64_t epoch, int64_t count);

// What is sent of one: each sequence that has actions, with what of the arrays is its own.
std::vector<TrainingSequence> MakeTrainingSequences(const std::vector<Experience>& batch,
                                                    const std::vector<TrainingArray>& arrays,
                                                    const OptimizerStep& step);

// reward/*, of which those of all sources together only where answers have rewards (HasRewards),
// token_rewards/before_last where tokens have some, kl/mean, response_length/mean, critic/explained_variance and
// tokens/generated.
void AddExperienceMetrics(const std::vector<Experience>& batch, bool has_rewards, Metrics* metrics);

}  // namespace quartet

// The advantage estimators: a row for each. Defaults, checks and the arithmetic (core/rl/advantages.h) go by the rows;
// a new one is a row and its function in estimators.cc. Formulas: docs/algorithms.md.
#pragma once

#include <span>
#include <string_view>

#include "core/rl/options/moments.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct AdvantageEstimator {
  std::string_view name;  // in algorithm.advantage_estimator
  // Values of states, and so a critic: lambd, value_clip and what else is the critic's.
  bool needs_critic = false;
  // Turns the rewards of one group, of at least two, into advantages; `batch` is of all rewards of the rollout batch.
  // Null: rewards are not compared.
  void (*compare)(const AlgorithmConfig& algorithm, const Moments& batch, std::span<double> group) = nullptr;
  bool by_program = false;    // what algorithm.advantage_command says
  bool has_baseline = false;  // which algorithm.group_baseline chooses
  bool divides = false;       // by a standard deviation: group_std_eps, group_std_scale
  // Defaults of algorithm.advantage_normalization and, unless "", of loss_aggregation.
  std::string_view normalization;
  std::string_view loss_aggregation = "";

  // A reward is compared with those of its group. In a group of one it has nothing to be compared with: the advantage,
  // before token KL and normalisation, is 0 (TRL, NeMo-RL; verl takes the reward itself).
  bool compares() const { return compare != nullptr; }
  // Each token may have a reward of its own; else an answer has one number.
  bool takes_token_rewards() const { return !compares(); }
  // An answer's tokens share one number, so that nothing is discounted.
  bool is_of_whole_answers() const { return compares() || by_program; }
};

std::span<const AdvantageEstimator> AdvantageEstimators();
// Null where none has the name.
const AdvantageEstimator* FindEstimator(std::string_view name);
// Of a checked configuration.
const AdvantageEstimator& EstimatorOf(const AlgorithmConfig& algorithm);

}  // namespace quartet

// From the scalar rewards of a rollout batch to the advantages and returns of every action token. Formulas, and which
// options give which peer's numbers: docs/algorithms.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "proto/run_config.pb.h"

namespace quartet {

// One sequence of the rollout batch; arrays have one entry per action token, in order.
template <typename T>
struct ScoredSequence {
  // Sequences of the same prompt have the same.
  int64_t group = 0;
  // Finite; with its length penalty (core/rl/rewards.h), before it is clipped.
  double reward = 0;
  // What of it each token has, where sources say so; then it has no part in the result. Empty: all of it is the last
  // one's. For estimators that do not compare rewards.
  std::span<const T> token_rewards;
  // Action tokens; 0 is allowed: the reward counts in its group, and nothing is returned.
  size_t tokens = 0;
  // Left out of the loss, as overlong answers may be: its reward counts in its group, its advantages do not count in
  // the normalisation.
  bool excluded = false;
  // Empty for no penalty.
  std::span<const T> kl;
  // Empty unless the estimator needs a critic.
  std::span<const T> values;
  // Each token's advantage before the KL penalty and normalisation, where a program gives them; else empty.
  std::span<const T> given;
};

template <typename T>
struct AdvantagesAndReturns {
  std::vector<T> advantages;
  // Discounted rewards to go, less their baseline, or advantages + values with a critic; before normalisation.
  std::vector<T> returns;
  // What stands at the tokens, without their KL penalties: the reward, less its group's baseline and with the KL
  // penalty of a sequence where those are, clipped; the sum of tokens' rewards, each clipped; the mean of what a
  // program gives. And whether clipping has changed it, or what the program got.
  double shaped_reward = 0;
  bool clipped = false;
};

// Of each sequence of the batch, in order. Defined for float and double; computed in double either way. `algorithm` is
// resolved and checked; `kl_coefficient`, not negative, is of the KL penalty in the rewards: 0 where KL is in the loss,
// or nowhere.
template <typename T>
std::vector<AdvantagesAndReturns<T>> EstimateAdvantages(const std::vector<ScoredSequence<T>>& batch,
                                                        const AlgorithmConfig& algorithm, double kl_coefficient);

}  // namespace quartet

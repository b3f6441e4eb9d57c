#include "core/rl/advantages.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "core/base/logging.h"
#include "core/rl/options/estimators.h"
#include "core/rl/options/moments.h"

namespace quartet {
namespace {

constexpr double kWhiteningEpsilon = 1e-8;

// What the configuration says, once for all sequences.
struct Estimation {
  const AlgorithmConfig& algorithm;
  const AdvantageEstimator& estimator;
  double token_kl = 0, sequence_kl = 0;  // coefficients of the penalty on each token, and on the scalar reward
};

// The rewards less their groups' baselines, in the order of the batch.
template <typename T>
std::vector<double> CompareWithinGroups(const std::vector<ScoredSequence<T>>& batch, const Estimation& how,
                                        std::vector<double> rewards) {
  std::map<int64_t, std::vector<size_t>> groups;
  for (size_t i = 0; i < batch.size(); ++i) groups[batch[i].group].push_back(i);
  const Moments whole = MomentsOf(rewards);
  for (const auto& [id, members] : groups) {
    std::vector<double> group;
    group.reserve(members.size());
    for (size_t i : members) group.push_back(rewards[i]);
    if (group.size() == 1) {
      group[0] = 0;
    } else {
      how.estimator.compare(how.algorithm, whole, group);
    }
    for (size_t k = 0; k < members.size(); ++k) rewards[members[k]] = group[k];
  }
  return rewards;
}

double Clipped(double reward, const AlgorithmConfig& algorithm) {
  return std::clamp<double>(reward, algorithm.reward_clip_min(), algorithm.reward_clip_max());
}

struct ShapedRewards {
  std::vector<double> values;  // what stands at the last token of each sequence, or at all of them together
  std::vector<bool> clipped;
};

template <typename T>
ShapedRewards ShapeRewards(const std::vector<ScoredSequence<T>>& batch, const Estimation& how) {
  const AlgorithmConfig& algorithm = how.algorithm;
  ShapedRewards shaped = {.values = {}, .clipped = std::vector<bool>(batch.size())};
  std::vector<double>& rewards = shaped.values;
  const auto clip = [&] {
    for (size_t i = 0; i < rewards.size(); ++i) {
      if (batch[i].token_rewards.empty()) {
        const double before = rewards[i];
        rewards[i] = Clipped(before, algorithm);
        shaped.clipped[i] = rewards[i] != before;
        continue;
      }
      rewards[i] = 0;
      for (const double before : batch[i].token_rewards) {
        const double after = Clipped(before, algorithm);
        rewards[i] += after;
        shaped.clipped[i] = shaped.clipped[i] || after != before;
      }
    }
  };
  const bool by_program = how.estimator.by_program;
  const bool clips_before = by_program || algorithm.reward_clip_placement() == "before_baseline";
  rewards.reserve(batch.size());
  for (const ScoredSequence<T>& s : batch) rewards.push_back(s.reward);
  if (clips_before) clip();
  if (how.sequence_kl != 0) {
    for (size_t i = 0; i < batch.size(); ++i) {
      rewards[i] -= how.sequence_kl * std::accumulate(batch[i].kl.begin(), batch[i].kl.end(), 0.0);
    }
  }
  if (how.estimator.compares()) rewards = CompareWithinGroups(batch, how, std::move(rewards));
  if (!clips_before) clip();
  // It has made of them what it gives.
  if (by_program) std::ranges::fill(rewards, 0);
  return shaped;
}

struct Estimates {
  std::vector<double> advantages;
  std::vector<double> returns;
};

// Backwards over the tokens of a sequence, each with its own reward, or the last one with `last`, and with the KL
// penalty.
template <typename T>
Estimates EstimateSequence(const ScoredSequence<T>& sequence, double last, const Estimation& how) {
  const size_t n = sequence.tokens;
  const bool critic = how.estimator.needs_critic;
  QUARTET_CHECK(sequence.kl.empty() || sequence.kl.size() == n) << sequence.kl.size() << " of " << n;
  QUARTET_CHECK(!critic || sequence.values.size() == n) << sequence.values.size() << " of " << n;
  const bool by_program = how.estimator.by_program;
  QUARTET_CHECK(!by_program || sequence.given.size() == n) << sequence.given.size() << " of " << n;
  const std::span<const T> token_rewards = sequence.token_rewards;
  QUARTET_CHECK(token_rewards.empty() || (token_rewards.size() == n && !how.estimator.compares()))
      << token_rewards.size() << " of " << n;
  const auto reward_of = [&](size_t t) {
    if (token_rewards.empty() || by_program) return t + 1 == n ? last : 0;
    return Clipped(token_rewards[t], how.algorithm);
  };
  const double gamma = how.algorithm.gamma();
  const double decay = critic ? gamma * how.algorithm.lambd() : gamma;
  Estimates result{std::vector<double>(n), std::vector<double>(n)};
  double next_advantage = 0;
  double next_value = 0;
  for (size_t t = n; t-- > 0;) {
    double reward = reward_of(t);
    if (!sequence.kl.empty()) reward -= how.token_kl * static_cast<double>(sequence.kl[t]);
    const double value = critic ? static_cast<double>(sequence.values[t]) : 0;
    next_advantage = reward + gamma * next_value - value + decay * next_advantage;
    next_value = value;
    result.advantages[t] = next_advantage + (by_program ? static_cast<double>(sequence.given[t]) : 0);
    result.returns[t] = result.advantages[t] + value;
  }
  return result;
}

// Over the tokens of all sequences that are not excluded.
template <typename T>
void Normalize(const std::vector<ScoredSequence<T>>& batch, const AlgorithmConfig& algorithm,
               std::vector<Estimates>* estimates) {
  if (algorithm.advantage_normalization() == "none") return;
  std::vector<double> all;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!batch[i].excluded) all.insert(all.end(), (*estimates)[i].advantages.begin(), (*estimates)[i].advantages.end());
  }
  const Moments moments = MomentsOf(all);
  double deviation = 1;
  if (algorithm.advantage_normalization() == "whiten") {
    // OpenRLHF's; verl's and TRL's PPO's.
    deviation = algorithm.whitening_variance() == "population"
                    ? std::sqrt(std::max(moments.PopulationVariance(), kWhiteningEpsilon))
                    : std::sqrt(moments.UnbiasedVariance() + kWhiteningEpsilon);
  }
  const bool equal = moments.squares == 0;
  for (Estimates& e : *estimates) {
    for (double& a : e.advantages) {
      const bool is_mean = equal && !IsAbove(a, moments.mean) && !IsAbove(moments.mean, a);
      a = is_mean ? 0 : (a - moments.mean) / deviation;
    }
  }
}

}  // namespace

template <typename T>
std::vector<AdvantagesAndReturns<T>> EstimateAdvantages(const std::vector<ScoredSequence<T>>& batch,
                                                        const AlgorithmConfig& algorithm, double kl_coefficient) {
  QUARTET_CHECK(kl_coefficient >= 0) << kl_coefficient;
  const bool of_sequences = algorithm.kl().kl_placement() == "sequence";
  const Estimation how = {.algorithm = algorithm,
                          .estimator = EstimatorOf(algorithm),
                          .token_kl = of_sequences ? 0 : kl_coefficient,
                          .sequence_kl = of_sequences ? kl_coefficient : 0};
  const ShapedRewards rewards = ShapeRewards(batch, how);
  std::vector<Estimates> estimates;
  estimates.reserve(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) estimates.push_back(EstimateSequence(batch[i], rewards.values[i], how));
  Normalize(batch, algorithm, &estimates);
  std::vector<AdvantagesAndReturns<T>> results;
  results.reserve(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const Estimates& e = estimates[i];
    const std::span<const T> given = batch[i].given;
    const double mean_given = given.empty() ? 0 : std::reduce(given.begin(), given.end(), 0.0) / given.size();
    results.push_back({.advantages = std::vector<T>(e.advantages.begin(), e.advantages.end()),
                       .returns = std::vector<T>(e.returns.begin(), e.returns.end()),
                       .shaped_reward = rewards.values[i] + mean_given,
                       .clipped = rewards.clipped[i]});
  }
  return results;
}

template std::vector<AdvantagesAndReturns<float>> EstimateAdvantages(const std::vector<ScoredSequence<float>>&,
                                                                     const AlgorithmConfig&, double);
template std::vector<AdvantagesAndReturns<double>> EstimateAdvantages(const std::vector<ScoredSequence<double>>&,
                                                                      const AlgorithmConfig&, double);

}  // namespace quartet

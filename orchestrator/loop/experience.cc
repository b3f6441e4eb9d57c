#include "orchestrator/loop/experience.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/status_macros.h"
#include "core/rl/advantages.h"
#include "core/rl/aggregation.h"
#include "core/rl/kl.h"
#include "orchestrator/loop/random.h"

namespace quartet {
namespace {

constexpr uint64_t kShufflePurpose = 2;

// Mean and population variance.
struct Moments {
  double mean = 0;
  double variance = 0;
};

Moments MomentsOf(const std::vector<double>& values) {
  Moments moments;
  if (values.empty()) return moments;
  const double n = static_cast<double>(values.size());
  moments.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  for (double x : values) moments.variance += (x - moments.mean) * (x - moments.mean) / n;
  return moments;
}

void Assign(const std::vector<float>& values, google::protobuf::RepeatedField<float>* field) {
  field->Assign(values.begin(), values.end());
}

}  // namespace

absl::Status ComputeAdvantages(const AlgorithmConfig& algorithm, double kl_coefficient,
                               std::vector<Experience>* batch) {
  QUARTET_ASSIGN_OR_RETURN(const KlEstimator estimator, ParseKlEstimator(algorithm.kl().kl_estimator()));
  QUARTET_ASSIGN_OR_RETURN(const AdvantageNormalization normalization,
                           ParseAdvantageNormalization(algorithm.advantage_normalization()));
  std::vector<std::vector<float>> advantages;
  advantages.reserve(batch->size());
  for (Experience& e : *batch) {
    if (!e.reference_log_probs.empty()) e.kl = EstimateKl(e.log_probs, e.reference_log_probs, estimator);
    const std::vector<float> rewards = TokenRewards(e.reward, algorithm.reward_clip_min(), algorithm.reward_clip_max(),
                                                    e.kl, kl_coefficient, e.action_tokens());
    AdvantagesAndReturns estimated = EstimateAdvantages(rewards, e.values, algorithm.gamma(), algorithm.lambd());
    e.returns = std::move(estimated.returns);
    advantages.push_back(std::move(estimated.advantages));
  }
  NormalizeAdvantages(advantages, normalization);
  for (size_t i = 0; i < batch->size(); ++i) (*batch)[i].advantages = std::move(advantages[i]);
  return absl::OkStatus();
}

LogProbDifference CompareLogProbs(const std::vector<Experience>& batch) {
  std::vector<double> differences;
  for (const Experience& e : batch) {
    for (int64_t t = 0; t < e.action_tokens(); ++t) {
      differences.push_back(
          std::abs(static_cast<double>(e.log_probs[t]) - static_cast<double>(e.rollout_log_probs[t])));
    }
  }
  LogProbDifference result;
  if (differences.empty()) return result;
  result.mean = MomentsOf(differences).mean;
  result.max = *std::max_element(differences.begin(), differences.end());
  // The smallest value that at least 99 % of the tokens do not exceed.
  const size_t rank = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(differences.size()))) - 1;
  std::nth_element(differences.begin(), differences.begin() + static_cast<std::ptrdiff_t>(rank), differences.end());
  result.p99 = differences[rank];
  return result;
}

std::optional<double> MeanKl(const std::vector<Experience>& batch) {
  std::vector<double> kl;
  for (const Experience& e : batch) kl.insert(kl.end(), e.kl.begin(), e.kl.end());
  if (kl.empty()) return std::nullopt;
  return MomentsOf(kl).mean;
}

absl::StatusOr<std::vector<std::vector<TrainingSequence>>> MakeOptimizerSteps(const RunConfig& config,
                                                                              const std::vector<Experience>& batch,
                                                                              int64_t step, int64_t epoch) {
  QUARTET_ASSIGN_OR_RETURN(const LossAggregation aggregation,
                           ParseLossAggregation(config.algorithm().loss_aggregation()));
  std::vector<size_t> order(batch.size());
  std::iota(order.begin(), order.end(), 0);
  Random::Of({config.seed(), kShufflePurpose, static_cast<uint64_t>(step), static_cast<uint64_t>(epoch)})
      .Shuffle(order);
  const bool rollout_is_old = config.algorithm().old_log_prob_source() == "rollout";
  const size_t chunk_size = static_cast<size_t>(config.train().train_batch_size());
  std::vector<std::vector<TrainingSequence>> steps;
  for (size_t begin = 0; begin < order.size(); begin += chunk_size) {
    const size_t end = std::min(begin + chunk_size, order.size());
    std::vector<int64_t> lengths;
    for (size_t i = begin; i < end; ++i) lengths.push_back(batch[order[i]].action_tokens());
    const std::vector<float> weights = LossWeights(lengths, aggregation);
    std::vector<TrainingSequence>& sequences = steps.emplace_back(end - begin);
    for (size_t i = begin; i < end; ++i) {
      const Experience& e = batch[order[i]];
      TrainingSequence& sequence = sequences[i - begin];
      *sequence.mutable_tokens() = e.tokens;
      sequence.mutable_tokens()->set_index(i - begin);
      sequence.mutable_loss_weights()->Resize(static_cast<int>(e.action_tokens()), weights[i - begin]);
      Assign(rollout_is_old ? e.rollout_log_probs : e.log_probs, sequence.mutable_old_log_probs());
      Assign(e.advantages, sequence.mutable_advantages());
      Assign(e.rollout_log_probs, sequence.mutable_rollout_log_probs());
      Assign(e.values, sequence.mutable_old_values());
      Assign(e.returns, sequence.mutable_returns());
    }
  }
  return steps;
}

void AddExperienceMetrics(const std::vector<Experience>& batch, Metrics* metrics) {
  std::vector<double> rewards, lengths, returns, errors;
  std::map<std::string, double> parts;
  int64_t tokens = 0;
  int64_t truncated = 0;
  const double n = static_cast<double>(std::max<size_t>(batch.size(), 1));
  for (const Experience& e : batch) {
    rewards.push_back(e.reward);
    lengths.push_back(static_cast<double>(e.action_tokens()));
    tokens += e.action_tokens();
    truncated += e.truncated;
    for (const auto& [name, value] : e.reward_parts) parts[name] += value / n;
    for (size_t t = 0; t < e.returns.size(); ++t) {
      returns.push_back(e.returns[t]);
      errors.push_back(static_cast<double>(e.returns[t]) - e.values[t]);
    }
  }
  const Moments reward = MomentsOf(rewards);
  metrics->Set("reward/mean", reward.mean);
  metrics->Set("reward/std", std::sqrt(reward.variance));
  for (const auto& [name, value] : parts) metrics->Set("reward/" + name, value);
  if (const std::optional<double> kl = MeanKl(batch); kl.has_value()) metrics->Set("kl/mean", *kl);
  metrics->Set("response_length/mean", MomentsOf(lengths).mean);
  metrics->Set("response_length/truncated", static_cast<double>(truncated) / n);
  const LogProbDifference difference = CompareLogProbs(batch);
  metrics->Set("rollout/log_prob_diff_mean", difference.mean);
  metrics->Set("rollout/log_prob_diff_p99", difference.p99);
  metrics->Set("rollout/log_prob_diff_max", difference.max);
  // Share of the returns' variance that the values explain; 0 where the returns hardly vary (no answer was right): a
  // ratio to a variance that is all rounding and traces of KL says nothing. The bound is the one of whitening.
  const double variance = MomentsOf(returns).variance;
  metrics->Set("critic/explained_variance", variance > 1e-8 ? 1 - MomentsOf(errors).variance / variance : 0.0);
  metrics->Set("tokens/generated", static_cast<double>(tokens));
}

}  // namespace quartet

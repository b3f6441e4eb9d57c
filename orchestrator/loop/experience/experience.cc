#include "orchestrator/loop/experience/experience.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>

#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"
#include "core/config/batches/updates.h"
#include "core/rl/advantages.h"
#include "core/rl/aggregation.h"
#include "core/rl/kl.h"
#include "core/rl/options/moments.h"
#include "core/rl/options/policy_losses.h"
#include "core/rl/options/token_arrays.h"

namespace quartet {
namespace {

constexpr uint64_t kShufflePurpose = 2;

}  // namespace

absl::Status ComputeAdvantages(const AlgorithmConfig& algorithm, double kl_coefficient,
                               std::vector<Experience>* batch) {
  const bool has_reference = kl_coefficient > 0;
  const double in_rewards = algorithm.kl().use_kl_loss() ? 0 : kl_coefficient;
  std::vector<ScoredSequence<float>> scored;
  scored.reserve(batch->size());
  for (Experience& e : *batch) {
    if (has_reference) {
      QUARTET_ASSIGN_OR_RETURN(const KlEstimator estimator, ParseKlEstimator(algorithm.kl().kl_estimator()));
      QUARTET_ASSIGN_OR_RETURN(const KlClamp clamp, ParseKlClamp(algorithm.kl().kl_clamp()));
      e.kl = EstimateKl(e.log_probs, e.reference_log_probs, estimator, clamp);
    }
    scored.push_back({.group = e.group,
                      .reward = e.reward,
                      .token_rewards = e.token_rewards,
                      .tokens = static_cast<size_t>(e.action_tokens()),
                      .excluded = e.excluded,
                      .kl = in_rewards > 0 ? std::span<const float>(e.kl) : std::span<const float>(),
                      .values = e.values,
                      .given = e.given_advantages});
  }
  std::vector<AdvantagesAndReturns<float>> estimated = EstimateAdvantages(scored, algorithm, in_rewards);
  for (size_t i = 0; i < batch->size(); ++i) {
    (*batch)[i].advantages = std::move(estimated[i].advantages);
    (*batch)[i].returns = std::move(estimated[i].returns);
    (*batch)[i].shaped_reward = estimated[i].shaped_reward;
    (*batch)[i].reward_clipped = estimated[i].clipped;
  }
  return absl::OkStatus();
}

bool TakesOwnOldLogProbs(const RunConfig& config) {
  const AlgorithmConfig& algorithm = config.algorithm();
  return algorithm.old_log_prob_source() == "auto" && UpdatesPerBatch(config) * algorithm.max_epochs() == 1;
}

std::optional<double> BatchKl(const std::vector<Experience>& batch, KlMean mean) {
  std::vector<std::span<const float>> kl;
  for (const Experience& e : batch) kl.emplace_back(e.kl);
  return MeanKl(kl, mean);
}

std::vector<TrainingArray> PolicyArrays(const RunConfig& config, const PolicyLossConfig& loss) {
  const bool old_of_rollout = config.algorithm().old_log_prob_source() == "rollout";
  // With a product over the sequence a token's gradient has the advantages of all its sequence's tokens. Of an answer
  // in several sequences these are fewer; scaled they are as many.
  const bool has_product = loss.kind() == PolicyLossConfig::KIND_SEQUENCE_PPO;
  const TrainingArray known[] = {
      {kAdvantages, &Experience::advantages, has_product},
      {kOldLogProbs, old_of_rollout ? &Experience::sampled_log_probs : &Experience::log_probs},
      {kRolloutLogProbs, &Experience::sampled_log_probs},
      {kReferenceLogProbs, &Experience::reference_log_probs},
  };
  std::vector<TrainingArray> arrays;
  for (const std::string_view name : ArraysOf(loss)) {
    if (name == kLossWeights) continue;
    const auto* const found = std::ranges::find(known, name, &TrainingArray::name);
    QUARTET_CHECK(found != std::end(known)) << "no experience has " << name;
    arrays.push_back(*found);
  }
  return arrays;
}

std::vector<TrainingArray> CriticArrays() {
  return {{kOldValues, &Experience::values}, {kReturns, &Experience::returns}};
}

absl::StatusOr<std::vector<OptimizerStep>> CutIntoOptimizerSteps(const RunConfig& config,
                                                                 const std::vector<Experience>& batch, int64_t step,
                                                                 int64_t epoch, int64_t count) {
  const AlgorithmConfig& algorithm = config.algorithm();
  QUARTET_ASSIGN_OR_RETURN(const LossAggregation aggregation, ParseLossAggregation(algorithm.loss_aggregation()));
  std::vector<size_t> order(batch.size());
  std::iota(order.begin(), order.end(), 0);
  Random::Of({config.seed(), kShufflePurpose, static_cast<uint64_t>(step), static_cast<uint64_t>(epoch)})
      .Shuffle(order);
  std::vector<OptimizerStep> steps(count);
  for (int64_t s = 0; s < count; ++s) {
    const size_t begin = order.size() * s / count, end = order.size() * (s + 1) / count;
    std::vector<AggregatedSequence> parts;
    for (size_t i = begin; i < end; ++i) {
      parts.push_back({.action_tokens = batch[order[i]].action_tokens(), .excluded = batch[order[i]].excluded});
    }
    const std::vector<float> weights = LossWeights(parts, aggregation, algorithm.loss_constant());
    for (size_t i = begin; i < end; ++i) {
      const Experience& e = batch[order[i]];
      if (e.excluded || e.action_tokens() == 0) continue;
      steps[s].positions.push_back(order[i]);
      steps[s].weights.push_back(weights[i - begin]);
    }
  }
  return steps;
}

std::vector<TrainingSequence> MakeTrainingSequences(const std::vector<Experience>& batch,
                                                    const std::vector<TrainingArray>& arrays,
                                                    const OptimizerStep& step) {
  std::vector<TrainingSequence> sequences;
  for (size_t i = 0; i < step.positions.size(); ++i) {
    const Experience& e = batch[step.positions[i]];
    size_t begin = 0;  // of the sequence's actions among all
    for (const TokenSequence& tokens : e.sequences) {
      const int64_t actions = CountActions(tokens);
      if (actions == 0) continue;
      TrainingSequence& sequence = sequences.emplace_back();
      *sequence.mutable_tokens() = tokens;
      sequence.mutable_tokens()->set_index(sequences.size() - 1);
      AddArray(kLossWeights, &sequence).Resize(static_cast<int>(actions), step.weights[i]);
      for (const TrainingArray& array : arrays) {
        const std::span<const float> values = std::span<const float>(e.*array.from).subspan(begin, actions);
        const float scale =
            array.scaled_to_answer ? static_cast<float>(e.action_tokens()) / static_cast<float>(actions) : 1;
        auto& sent = AddArray(array.name, &sequence);
        for (const float value : values) sent.Add(scale * value);
      }
      begin += actions;
    }
    QUARTET_CHECK(begin == static_cast<size_t>(e.action_tokens())) << "sequences have other actions than their arrays";
  }
  return sequences;
}

void AddExperienceMetrics(const std::vector<Experience>& batch, bool has_rewards, Metrics* metrics) {
  std::vector<double> rewards, shaped, lengths, returns, errors;
  std::map<int64_t, bool> teaches;                   // by group
  std::map<std::string, std::vector<double>> parts;  // of the answers that have them
  int64_t tokens = 0;
  int64_t truncated = 0, excluded = 0, clipped = 0, of_tokens = 0, before_last = 0;
  const double n = static_cast<double>(std::max<size_t>(batch.size(), 1));
  for (const Experience& e : batch) {
    rewards.push_back(e.reward);
    shaped.push_back(e.shaped_reward);
    clipped += e.reward_clipped;
    of_tokens += !e.token_rewards.empty();
    const std::span tokens_of(e.token_rewards);
    before_last += std::ranges::any_of(tokens_of.first(tokens_of.size() - !tokens_of.empty()),
                                       [](float reward) { return reward != 0; });
    teaches[e.group] |= !e.excluded && std::ranges::any_of(e.advantages, [](float a) { return a != 0; });
    lengths.push_back(static_cast<double>(e.action_tokens()));
    tokens += e.action_tokens();
    truncated += e.truncated;
    excluded += e.excluded;
    for (const auto& [name, value] : e.reward_parts) parts[name].push_back(value);
    for (const auto& [name, value] : e.extra_logs) parts[name].push_back(value);
    // Without a critic there are returns, but no values.
    for (size_t t = 0; t < e.values.size(); ++t) {
      returns.push_back(e.returns[t]);
      errors.push_back(static_cast<double>(e.returns[t]) - e.values[t]);
    }
  }
  const Moments reward = MomentsOf(rewards);
  const auto idle = static_cast<double>(std::ranges::count_if(teaches, [](const auto& one) { return !one.second; }));
  for (const auto& [name, values] : parts) metrics->Set("reward/" + name, MomentsOf(values).mean);
  if (has_rewards) {
    metrics->Set("reward/mean", reward.mean);
    metrics->Set("reward/std", std::sqrt(reward.PopulationVariance()));
    metrics->Set("reward/shaped_std", std::sqrt(MomentsOf(shaped).PopulationVariance()));
    metrics->Set("reward/clipped", static_cast<double>(clipped) / n);
  }
  metrics->Set("reward/groups_without_signal", idle / static_cast<double>(std::max<size_t>(teaches.size(), 1)));
  if (of_tokens > 0) metrics->Set("token_rewards/before_last", static_cast<double>(before_last) / n);
  if (const std::optional<double> kl = BatchKl(batch); kl.has_value()) metrics->Set("kl/mean", *kl);
  metrics->Set("response_length/mean", MomentsOf(lengths).mean);
  metrics->Set("response_length/truncated", static_cast<double>(truncated) / n);
  metrics->Set("response_length/excluded", static_cast<double>(excluded) / n);
  // Share of the returns' variance that the values explain; 0 where the returns hardly vary (no answer was right): a
  // ratio to a variance that is all rounding and traces of KL says nothing. The bound is the one of whitening.
  const double variance = MomentsOf(returns).PopulationVariance();
  if (!returns.empty())
    metrics->Set("critic/explained_variance",
                 variance > 1e-8 ? 1 - MomentsOf(errors).PopulationVariance() / variance : 0.0);
  metrics->Set("tokens/generated", static_cast<double>(tokens));
}

}  // namespace quartet

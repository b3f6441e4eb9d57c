#include "core/rl/advantages.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/rl/option_name.h"

namespace quartet {
namespace {

constexpr double kWhiteningEpsilon = 1e-8;

// Of numbers that are not all the same the usual formulas; of equal ones exactly (that number, 0), where rounding would
// leave a trace that a division could make large.
struct Moments {
  double mean = 0;
  double squares = 0;  // sum of squared differences to the mean
  double count = 0;

  double PopulationVariance() const { return count > 0 ? squares / count : 0; }
  double UnbiasedVariance() const { return count > 1 ? squares / (count - 1) : 0; }
};

Moments MomentsOf(std::span<const double> values) {
  Moments moments;
  if (values.empty()) return moments;
  moments.count = static_cast<double>(values.size());
  moments.mean = values.front();
  if (std::ranges::all_of(values, [&](double x) { return x == values.front(); })) return moments;
  moments.mean = std::accumulate(values.begin(), values.end(), 0.0) / moments.count;
  for (double x : values) moments.squares += (x - moments.mean) * (x - moments.mean);
  return moments;
}

bool DividesByDeviation(AdvantageEstimator estimator) { return estimator == AdvantageEstimator::kGrpo; }

// Compares each reward of a group with the others.
void SubtractBaseline(const AdvantageOptions& options, const Moments& batch, std::span<double> group) {
  if (group.size() == 1) {
    group[0] = 0;
    return;
  }
  const bool leave_one_out =
      options.estimator == AdvantageEstimator::kRloo || options.group_baseline == GroupBaseline::kLeaveOneOut;
  const Moments whole = MomentsOf(group);
  std::vector<double> advantages;
  advantages.reserve(group.size());
  for (size_t i = 0; i < group.size(); ++i) {
    Moments moments = whole;
    if (leave_one_out) {
      std::vector<double> others(group.begin(), group.end());
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      moments = MomentsOf(others);
    }
    double advantage = group[i] - moments.mean;
    if (DividesByDeviation(options.estimator)) {
      const Moments& scale = options.grpo_scale == GrpoScale::kBatch ? batch : moments;
      const double deviation = std::sqrt(scale.UnbiasedVariance());
      // Others that agree say nothing of the scale: NeMo-RL does not divide by epsilon alone then.
      if (!leave_one_out || deviation > 0) advantage /= deviation + options.grpo_epsilon;
    }
    advantages.push_back(advantage);
  }
  std::ranges::copy(advantages, group.begin());
}

// The rewards less their groups' baselines, in the order of the batch.
template <typename T>
std::vector<double> CompareWithinGroups(const std::vector<ScoredSequence<T>>& batch, const AdvantageOptions& options,
                                        std::vector<double> rewards) {
  std::map<int64_t, std::vector<size_t>> groups;
  for (size_t i = 0; i < batch.size(); ++i) groups[batch[i].group].push_back(i);
  const Moments whole = MomentsOf(rewards);
  for (const auto& [id, members] : groups) {
    std::vector<double> group;
    group.reserve(members.size());
    for (size_t i : members) group.push_back(rewards[i]);
    SubtractBaseline(options, whole, group);
    for (size_t k = 0; k < members.size(); ++k) rewards[members[k]] = group[k];
  }
  return rewards;
}

// The scalar that stands at the last token of each sequence.
template <typename T>
std::vector<double> ShapedRewards(const std::vector<ScoredSequence<T>>& batch, const AdvantageOptions& options) {
  const auto clip = [&](std::vector<double>* rewards) {
    for (double& r : *rewards) r = std::clamp(r, options.reward_clip_min, options.reward_clip_max);
  };
  std::vector<double> rewards;
  rewards.reserve(batch.size());
  for (const ScoredSequence<T>& s : batch) rewards.push_back(s.reward);
  if (options.reward_clip_placement == RewardClipPlacement::kBeforeBaseline) clip(&rewards);
  if (options.kl_placement == KlPlacement::kSequence) {
    for (size_t i = 0; i < batch.size(); ++i) {
      rewards[i] -= options.kl_coefficient * std::accumulate(batch[i].kl.begin(), batch[i].kl.end(), 0.0);
    }
  }
  if (ComparesWithinGroup(options.estimator)) rewards = CompareWithinGroups(batch, options, std::move(rewards));
  if (options.reward_clip_placement == RewardClipPlacement::kAfterBaseline) clip(&rewards);
  return rewards;
}

struct Estimates {
  std::vector<double> advantages;
  std::vector<double> returns;
};

// Backwards over the tokens of a sequence, whose reward is `last` at the last one and the KL penalty at each.
template <typename T>
Estimates EstimateSequence(const ScoredSequence<T>& sequence, double last, const AdvantageOptions& options) {
  const size_t n = sequence.tokens;
  const bool critic = NeedsCritic(options.estimator);
  QUARTET_CHECK(sequence.kl.empty() || sequence.kl.size() == n) << sequence.kl.size() << " of " << n;
  QUARTET_CHECK(!critic || sequence.values.size() == n) << sequence.values.size() << " of " << n;
  const double penalty = options.kl_placement == KlPlacement::kToken ? options.kl_coefficient : 0;
  const double decay = critic ? options.gamma * options.lambda : options.gamma;
  Estimates result{std::vector<double>(n), std::vector<double>(n)};
  double next_advantage = 0;
  double next_value = 0;
  for (size_t t = n; t-- > 0;) {
    double reward = t + 1 == n ? last : 0;
    if (!sequence.kl.empty()) reward -= penalty * static_cast<double>(sequence.kl[t]);
    const double value = critic ? static_cast<double>(sequence.values[t]) : 0;
    next_advantage = reward + options.gamma * next_value - value + decay * next_advantage;
    next_value = value;
    result.advantages[t] = next_advantage;
    result.returns[t] = next_advantage + value;
  }
  return result;
}

// Over the tokens of all sequences that are not excluded.
template <typename T>
void Normalize(const std::vector<ScoredSequence<T>>& batch, const AdvantageOptions& options,
               std::vector<Estimates>* estimates) {
  const AdvantageNormalization normalization = options.normalization.value_or(DefaultNormalization(options.estimator));
  if (normalization == AdvantageNormalization::kNone) return;
  std::vector<double> all;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!batch[i].excluded) all.insert(all.end(), (*estimates)[i].advantages.begin(), (*estimates)[i].advantages.end());
  }
  const Moments moments = MomentsOf(all);
  double deviation = 1;
  if (normalization == AdvantageNormalization::kWhiten) {
    deviation = options.whitening_variance == WhiteningVariance::kPopulation
                    ? std::sqrt(std::max(moments.PopulationVariance(), kWhiteningEpsilon))
                    : std::sqrt(moments.UnbiasedVariance() + kWhiteningEpsilon);
  }
  for (Estimates& e : *estimates) {
    for (double& a : e.advantages) a = (a - moments.mean) / deviation;
  }
}

absl::Status Useless(std::string_view option, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(option), " has no effect with this advantage estimator: ", std::string(why)));
}

}  // namespace

absl::StatusOr<AdvantageEstimator> ParseAdvantageEstimator(std::string_view name) {
  return ParseOptionName<AdvantageEstimator>(
      "advantage estimator", name,
      {{"gae", AdvantageEstimator::kGae},
       {"reinforce", AdvantageEstimator::kReinforcePlusPlus},
       {"reinforce_plus_plus", AdvantageEstimator::kReinforcePlusPlus},
       {"reinforce_plus_plus_baseline", AdvantageEstimator::kReinforcePlusPlusBaseline},
       {"rloo", AdvantageEstimator::kRloo},
       {"grpo", AdvantageEstimator::kGrpo},
       {"dr_grpo", AdvantageEstimator::kDrGrpo}});
}

bool NeedsCritic(AdvantageEstimator estimator) { return estimator == AdvantageEstimator::kGae; }

bool ComparesWithinGroup(AdvantageEstimator estimator) {
  return estimator == AdvantageEstimator::kReinforcePlusPlusBaseline || estimator == AdvantageEstimator::kRloo ||
         estimator == AdvantageEstimator::kGrpo || estimator == AdvantageEstimator::kDrGrpo;
}

absl::StatusOr<AdvantageNormalization> ParseAdvantageNormalization(std::string_view name) {
  return ParseOptionName<AdvantageNormalization>("advantage normalization", name,
                                                 {{"whiten", AdvantageNormalization::kWhiten},
                                                  {"center", AdvantageNormalization::kCenter},
                                                  {"none", AdvantageNormalization::kNone}});
}

AdvantageNormalization DefaultNormalization(AdvantageEstimator estimator) {
  switch (estimator) {
    case AdvantageEstimator::kGae:
    case AdvantageEstimator::kReinforcePlusPlus:
    case AdvantageEstimator::kReinforcePlusPlusBaseline:
      return AdvantageNormalization::kWhiten;
    case AdvantageEstimator::kRloo:
    case AdvantageEstimator::kGrpo:
    case AdvantageEstimator::kDrGrpo:
      return AdvantageNormalization::kNone;
  }
  return AdvantageNormalization::kNone;
}

absl::StatusOr<WhiteningVariance> ParseWhiteningVariance(std::string_view name) {
  return ParseOptionName<WhiteningVariance>(
      "variance of whitening", name,
      {{"population", WhiteningVariance::kPopulation}, {"unbiased", WhiteningVariance::kUnbiased}});
}

absl::StatusOr<GroupBaseline> ParseGroupBaseline(std::string_view name) {
  return ParseOptionName<GroupBaseline>(
      "group baseline", name, {{"mean", GroupBaseline::kMean}, {"leave_one_out", GroupBaseline::kLeaveOneOut}});
}

absl::StatusOr<GrpoScale> ParseGrpoScale(std::string_view name) {
  return ParseOptionName<GrpoScale>("scale of GRPO", name,
                                    {{"group", GrpoScale::kGroup}, {"batch", GrpoScale::kBatch}});
}

absl::StatusOr<KlPlacement> ParseKlPlacement(std::string_view name) {
  return ParseOptionName<KlPlacement>("placement of the KL penalty", name,
                                      {{"token", KlPlacement::kToken}, {"sequence", KlPlacement::kSequence}});
}

absl::StatusOr<RewardClipPlacement> ParseRewardClipPlacement(std::string_view name) {
  return ParseOptionName<RewardClipPlacement>("placement of the reward clip", name,
                                              {{"after_baseline", RewardClipPlacement::kAfterBaseline},
                                               {"before_baseline", RewardClipPlacement::kBeforeBaseline}});
}

absl::Status CheckAdvantageOptions(const AdvantageOptions& options) {
  const auto is_share = [](double x) { return x >= 0 && x <= 1; };
  if (!is_share(options.gamma) || !is_share(options.lambda)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gamma ", options.gamma, " and lambda ", options.lambda, " must lie in [0, 1]"));
  }
  if (!(options.kl_coefficient >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("KL coefficient ", options.kl_coefficient, " must be at least 0"));
  }
  if (!(options.reward_clip_min < options.reward_clip_max)) {
    return absl::InvalidArgumentError(absl::StrCat("rewards cannot be clipped to [", options.reward_clip_min, ", ",
                                                   options.reward_clip_max, "]: the lower bound must be less"));
  }
  if (!(options.grpo_epsilon > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("GRPO's epsilon ", options.grpo_epsilon, " must be above 0"));
  }
  const bool groups = ComparesWithinGroup(options.estimator);
  if (options.gamma != 1 && groups) return Useless("gamma other than 1", "rewards are compared whole");
  if (options.lambda != 1 && !NeedsCritic(options.estimator))
    return Useless("lambda other than 1", "there is no critic");
  if (options.kl_placement == KlPlacement::kSequence && !groups) {
    return Useless("KL placement \"sequence\"", "rewards are not compared within groups");
  }
  if (options.reward_clip_placement == RewardClipPlacement::kBeforeBaseline && !groups) {
    return Useless("reward clip \"before_baseline\"", "there is no baseline");
  }
  if (options.group_baseline == GroupBaseline::kLeaveOneOut &&
      (!groups || options.estimator == AdvantageEstimator::kRloo)) {
    return Useless("group baseline \"leave_one_out\"", "it is for reinforce_plus_plus_baseline, grpo and dr_grpo");
  }
  if (options.grpo_scale == GrpoScale::kBatch && !DividesByDeviation(options.estimator)) {
    return Useless("scale of GRPO \"batch\"", "it is for grpo");
  }
  if (options.whitening_variance == WhiteningVariance::kUnbiased &&
      options.normalization.value_or(DefaultNormalization(options.estimator)) != AdvantageNormalization::kWhiten) {
    return Useless("variance of whitening \"unbiased\"", "advantages are not whitened");
  }
  return absl::OkStatus();
}

template <typename T>
std::vector<AdvantagesAndReturns<T>> EstimateAdvantages(const std::vector<ScoredSequence<T>>& batch,
                                                        const AdvantageOptions& options) {
  const absl::Status checked = CheckAdvantageOptions(options);
  QUARTET_CHECK(checked.ok()) << checked.message();
  const std::vector<double> rewards = ShapedRewards(batch, options);
  std::vector<Estimates> estimates;
  estimates.reserve(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) estimates.push_back(EstimateSequence(batch[i], rewards[i], options));
  Normalize(batch, options, &estimates);
  std::vector<AdvantagesAndReturns<T>> results;
  results.reserve(batch.size());
  for (const Estimates& e : estimates) {
    results.push_back(
        {std::vector<T>(e.advantages.begin(), e.advantages.end()), std::vector<T>(e.returns.begin(), e.returns.end())});
  }
  return results;
}

template std::vector<AdvantagesAndReturns<float>> EstimateAdvantages(const std::vector<ScoredSequence<float>>&,
                                                                     const AdvantageOptions&);
template std::vector<AdvantagesAndReturns<double>> EstimateAdvantages(const std::vector<ScoredSequence<double>>&,
                                                                      const AdvantageOptions&);

}  // namespace quartet

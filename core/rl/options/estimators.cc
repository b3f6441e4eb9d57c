#include "core/rl/options/estimators.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/logging.h"

namespace quartet {
namespace {

// Each reward less the mean of its group, or of the group's others; over their standard deviation where `divides`.
void CompareWithMean(const AlgorithmConfig& algorithm, const Moments& batch, bool leave_one_out, bool divides,
                     std::span<double> group) {
  if (AreEqual(group)) {
    std::ranges::fill(group, 0);
    return;
  }
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
    if (divides) {
      const Moments& scale = algorithm.group_std_scale() == "batch" ? batch : moments;
      const double deviation = std::sqrt(scale.UnbiasedVariance());
      // Others that agree say nothing of the scale: NeMo-RL does not divide by epsilon alone then.
      if (!leave_one_out || deviation > 0) advantage /= deviation + algorithm.group_std_eps();
    }
    advantages.push_back(advantage);
  }
  std::ranges::copy(advantages, group.begin());
}

bool LeavesOneOut(const AlgorithmConfig& algorithm) { return algorithm.group_baseline() == "leave_one_out"; }

// reward - mean of its group (Dr. GRPO: Liu et al. 2025; REINFORCE++ with baseline: Hu 2025).
void SubtractBaseline(const AlgorithmConfig& algorithm, const Moments& batch, std::span<double> group) {
  CompareWithMean(algorithm, batch, LeavesOneOut(algorithm), /*divides=*/false, group);
}

// reward - mean of the others of its group (Ahmadian et al. 2024).
void Rloo(const AlgorithmConfig& algorithm, const Moments& batch, std::span<double> group) {
  CompareWithMean(algorithm, batch, /*leave_one_out=*/true, /*divides=*/false, group);
}

// (reward - mean of its group) / (standard deviation + group_std_eps) (Shao et al. 2024).
void Grpo(const AlgorithmConfig& algorithm, const Moments& batch, std::span<double> group) {
  CompareWithMean(algorithm, batch, LeavesOneOut(algorithm), /*divides=*/true, group);
}

constexpr AdvantageEstimator kEstimators[] = {
    // Generalised advantage estimation with a critic (Schulman et al. 2016).
    {.name = "gae", .needs_critic = true, .normalization = "whiten"},
    // REINFORCE++: discounted rewards to go, whitened (Hu 2025); by OpenRLHF's name and by verl's.
    {.name = "reinforce", .normalization = "whiten"},
    {.name = "reinforce_plus_plus", .normalization = "whiten"},
    {.name = "reinforce_plus_plus_baseline",
     .compare = &SubtractBaseline,
     .has_baseline = true,
     .normalization = "whiten"},
    {.name = "rloo", .compare = &Rloo, .normalization = "none"},
    {.name = "grpo", .compare = &Grpo, .has_baseline = true, .divides = true, .normalization = "none"},
    {.name = "dr_grpo",
     .compare = &SubtractBaseline,
     .has_baseline = true,
     .normalization = "none",
     .loss_aggregation = "sequence_sum_over_constant"},
    {.name = "command", .by_program = true, .normalization = "none"},
};

}  // namespace

std::span<const AdvantageEstimator> AdvantageEstimators() { return kEstimators; }

const AdvantageEstimator* FindEstimator(std::string_view name) {
  const auto* const found = std::ranges::find(kEstimators, name, &AdvantageEstimator::name);
  return found == std::end(kEstimators) ? nullptr : found;
}

const AdvantageEstimator& EstimatorOf(const AlgorithmConfig& algorithm) {
  const AdvantageEstimator* const estimator = FindEstimator(algorithm.advantage_estimator());
  QUARTET_CHECK(estimator != nullptr) << "no estimator is named \"" << algorithm.advantage_estimator() << "\"";
  return *estimator;
}

}  // namespace quartet

// From the scalar rewards of a rollout batch to the advantages and returns of every action token. Formulas, and which
// options give which peer's numbers: docs/algorithms.md.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

enum class AdvantageEstimator {
  kGae,                        // generalised advantage estimation with a critic (Schulman et al. 2016)
  kReinforcePlusPlus,          // discounted rewards to go, whitened (Hu 2025)
  kReinforcePlusPlusBaseline,  // reward - mean of its group, whitened (Hu 2025)
  kRloo,                       // reward - mean of the others of its group (Ahmadian et al. 2024)
  kGrpo,                       // (reward - mean of its group) / (standard deviation + epsilon) (Shao et al. 2024)
  kDrGrpo,                     // reward - mean of its group (Liu et al. 2025)
};

// "gae", "reinforce" (OpenRLHF's name) or "reinforce_plus_plus" (verl's) for the same, "reinforce_plus_plus_baseline",
// "rloo", "grpo" or "dr_grpo"; anything else is INVALID_ARGUMENT.
absl::StatusOr<AdvantageEstimator> ParseAdvantageEstimator(std::string_view name);

// Values, and so a critic, are needed.
bool NeedsCritic(AdvantageEstimator estimator);
// A reward is compared with those of its group. In a group of one it has nothing to be compared with: the advantage,
// before token KL and normalisation, is 0 (TRL, NeMo-RL; verl takes the reward itself).
bool ComparesWithinGroup(AdvantageEstimator estimator);

enum class AdvantageNormalization {
  kNone,
  kCenter,  // A - mean
  kWhiten,  // (A - mean) / standard deviation
};

// "whiten", "center" or "none"; anything else is INVALID_ARGUMENT.
absl::StatusOr<AdvantageNormalization> ParseAdvantageNormalization(std::string_view name);
// kWhiten for kGae, kReinforcePlusPlus and kReinforcePlusPlusBaseline; kNone for the others.
AdvantageNormalization DefaultNormalization(AdvantageEstimator estimator);

// The standard deviation of whitening.
enum class WhiteningVariance {
  kPopulation,  // sqrt(max(population variance, 1e-8)): OpenRLHF
  kUnbiased,    // sqrt(unbiased variance + 1e-8): verl, TRL's PPO
};

// "population" or "unbiased"; anything else is INVALID_ARGUMENT.
absl::StatusOr<WhiteningVariance> ParseWhiteningVariance(std::string_view name);

// What a group's baseline is, for kReinforcePlusPlusBaseline, kGrpo and kDrGrpo.
enum class GroupBaseline {
  kMean,         // of the whole group
  kLeaveOneOut,  // of the others; for kGrpo the standard deviation is theirs too (NeMo-RL)
};

// "mean" or "leave_one_out"; anything else is INVALID_ARGUMENT.
absl::StatusOr<GroupBaseline> ParseGroupBaseline(std::string_view name);

// Whose (unbiased) standard deviation kGrpo divides by.
enum class GrpoScale {
  kGroup,  // of the group's rewards
  kBatch,  // of all rewards of the rollout batch (TRL: scale_rewards="batch")
};

// "group" or "batch"; anything else is INVALID_ARGUMENT.
absl::StatusOr<GrpoScale> ParseGrpoScale(std::string_view name);

// Where the KL penalty enters.
enum class KlPlacement {
  kToken,     // each token's reward, after the baseline: OpenRLHF
  kSequence,  // the scalar reward, summed over the tokens, before the baseline: TRL's RLOO; verl, where it compares
              // groups
};

// "token" or "sequence"; anything else is INVALID_ARGUMENT.
absl::StatusOr<KlPlacement> ParseKlPlacement(std::string_view name);

// What reward_clip_min and _max apply to.
enum class RewardClipPlacement {
  kAfterBaseline,   // the reward less its baseline, and scaled: OpenRLHF
  kBeforeBaseline,  // the reward itself: TRL
};

// "after_baseline" or "before_baseline"; anything else is INVALID_ARGUMENT.
absl::StatusOr<RewardClipPlacement> ParseRewardClipPlacement(std::string_view name);

struct AdvantageOptions {
  AdvantageEstimator estimator = AdvantageEstimator::kGae;
  // In [0, 1]. Other than 1 only for kGae and kReinforcePlusPlus.
  double gamma = 1;
  // In [0, 1]; kGae.
  double lambda = 1;

  // Coefficient of the KL penalty in the rewards; not negative. 0 where KL is in the loss, or nowhere.
  double kl_coefficient = 0;
  // kSequence only for estimators that compare within groups.
  KlPlacement kl_placement = KlPlacement::kToken;

  // reward_clip_min < reward_clip_max; infinite: no bound.
  double reward_clip_min = -std::numeric_limits<double>::infinity();
  double reward_clip_max = std::numeric_limits<double>::infinity();
  RewardClipPlacement reward_clip_placement = RewardClipPlacement::kAfterBaseline;

  GroupBaseline group_baseline = GroupBaseline::kMean;
  GrpoScale grpo_scale = GrpoScale::kGroup;
  // Added to the standard deviation of kGrpo; above 0. OpenRLHF 1e-9, verl and NeMo-RL 1e-6, TRL 1e-4.
  double grpo_epsilon = 1e-9;

  // Default: DefaultNormalization(estimator).
  std::optional<AdvantageNormalization> normalization;
  WhiteningVariance whitening_variance = WhiteningVariance::kPopulation;
};

// INVALID_ARGUMENT for values out of their range, and for those that would have no effect with this estimator.
absl::Status CheckAdvantageOptions(const AdvantageOptions& options);

// One sequence of the rollout batch; arrays have one entry per action token, in order.
template <typename T>
struct ScoredSequence {
  // Sequences of the same prompt have the same.
  int64_t group = 0;
  // Finite; with its length penalty (core/rl/rewards.h), before it is clipped.
  double reward = 0;
  // Action tokens; 0 is allowed: the reward counts in its group, and nothing is returned.
  size_t tokens = 0;
  // Left out of the loss, as overlong answers may be: its reward counts in its group, its advantages do not count in
  // the normalisation.
  bool excluded = false;
  // Empty for no penalty.
  std::span<const T> kl;
  // Empty unless NeedsCritic.
  std::span<const T> values;
};

template <typename T>
struct AdvantagesAndReturns {
  std::vector<T> advantages;
  // Discounted rewards to go, less their baseline, or advantages + values with a critic; before normalisation.
  std::vector<T> returns;
};

// Of each sequence of the batch, in order. Defined for float and double; computed in double either way. `options` are
// as CheckAdvantageOptions wants them.
template <typename T>
std::vector<AdvantagesAndReturns<T>> EstimateAdvantages(const std::vector<ScoredSequence<T>>& batch,
                                                        const AdvantageOptions& options);

}  // namespace quartet

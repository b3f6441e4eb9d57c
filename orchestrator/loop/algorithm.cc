#include "orchestrator/loop/algorithm.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"

namespace quartet {

absl::StatusOr<AdvantageOptions> AdvantagesOf(const AlgorithmConfig& a, double kl_coefficient) {
  AdvantageOptions options;
  QUARTET_ASSIGN_OR_RETURN(options.estimator, ParseAdvantageEstimator(a.advantage_estimator()));
  options.gamma = a.gamma();
  if (a.has_lambd()) options.lambda = a.lambd();
  options.kl_coefficient = a.kl().use_kl_loss() ? 0 : kl_coefficient;
  if (!a.kl().kl_placement().empty()) {
    QUARTET_ASSIGN_OR_RETURN(options.kl_placement, ParseKlPlacement(a.kl().kl_placement()));
  }
  options.reward_clip_min = a.reward_clip_min();
  options.reward_clip_max = a.reward_clip_max();
  if (!a.reward_clip_placement().empty()) {
    QUARTET_ASSIGN_OR_RETURN(options.reward_clip_placement, ParseRewardClipPlacement(a.reward_clip_placement()));
  }
  if (!a.group_baseline().empty()) {
    QUARTET_ASSIGN_OR_RETURN(options.group_baseline, ParseGroupBaseline(a.group_baseline()));
  }
  if (a.has_group_std_eps()) options.grpo_epsilon = a.group_std_eps();
  if (!a.group_std_scale().empty()) {
    QUARTET_ASSIGN_OR_RETURN(options.grpo_scale, ParseGrpoScale(a.group_std_scale()));
  }
  QUARTET_ASSIGN_OR_RETURN(options.normalization, ParseAdvantageNormalization(a.advantage_normalization()));
  if (!a.whitening_variance().empty()) {
    QUARTET_ASSIGN_OR_RETURN(options.whitening_variance, ParseWhiteningVariance(a.whitening_variance()));
  }
  return options;
}

PolicyLossConfig PolicyLossOf(const AlgorithmConfig& a, double kl_coefficient) {
  PolicyLossConfig loss;
  PolicyLossConfig::Kind kind = PolicyLossConfig::KIND_UNSPECIFIED;
  const bool known = PolicyLossConfig::Kind_Parse(absl::StrCat("KIND_", absl::AsciiStrToUpper(a.policy_loss())), &kind);
  QUARTET_CHECK(known) << a.policy_loss();
  loss.set_kind(kind);
  loss.set_eps_clip_low(a.eps_clip_low());
  loss.set_eps_clip_high(a.eps_clip_high());
  loss.set_dual_clip(a.dual_clip());
  loss.set_entropy_coef(a.entropy_coef());
  if (a.kl().use_kl_loss()) {
    loss.set_kl_coef(static_cast<float>(kl_coefficient));
    loss.set_kl_estimator(a.kl().kl_estimator());
    loss.set_kl_clamp(a.kl().kl_clamp());
    loss.set_kl_gradient(a.kl().kl_gradient());
  }
  const ImportanceCorrectionConfig& correction = a.importance_correction();
  loss.set_correction_mode(correction.mode());
  loss.set_correction_gating(correction.gating());
  loss.set_correction_low(correction.threshold_low());
  loss.set_correction_high(correction.threshold_high());
  return loss;
}

}  // namespace quartet

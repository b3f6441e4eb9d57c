#include "orchestrator/loop/experience/policy_loss.h"

#include "core/rl/options/policy_losses.h"

namespace quartet {

PolicyLossConfig PolicyLossOf(const AlgorithmConfig& a, double kl_coefficient) {
  PolicyLossConfig loss;
  loss.set_kind(FindPolicyLoss(a.policy_loss())->kind);
  loss.set_eps_clip_low(a.eps_clip_low());
  loss.set_eps_clip_high(a.eps_clip_high());
  loss.set_dual_clip(a.dual_clip());
  loss.set_entropy_coef(a.entropy_coef());
  if (a.kl().use_kl_loss()) {
    loss.set_kl_coef(kl_coefficient);
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

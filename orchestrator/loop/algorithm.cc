#include "orchestrator/loop/algorithm.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"

namespace quartet {

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

#include "policy_trainer/loss_options.h"

#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

absl::Status In(const std::string& field, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("header.loss", field, ": ", status.message()));
}

// "KIND_PPO" is "ppo".
absl::StatusOr<PolicyLossKind> KindOf(PolicyLossConfig::Kind kind) {
  if (kind == PolicyLossConfig::KIND_UNSPECIFIED || !PolicyLossConfig::Kind_IsValid(kind)) {
    return absl::InvalidArgumentError(absl::StrCat("header.loss.kind is ", static_cast<int>(kind), "; it must be ",
                                                   static_cast<int>(PolicyLossConfig::Kind_MIN) + 1, " to ",
                                                   static_cast<int>(PolicyLossConfig::Kind_MAX)));
  }
  constexpr std::string_view kPrefix = "KIND_";
  const std::string name = absl::AsciiStrToLower(PolicyLossConfig::Kind_Name(kind).substr(kPrefix.size()));
  const PolicyLossTraits* const found = FindPolicyLoss(name);
  if (found == nullptr) return absl::InvalidArgumentError(absl::StrCat("policy loss \"", name, "\" is of pairs"));
  return found->kind;
}

// Leaves the default where the field is empty.
template <typename T, typename Parse>
absl::Status ReadName(const std::string& name, const std::string& field, const Parse& parse, T* out) {
  if (name.empty()) return absl::OkStatus();
  const absl::StatusOr<T> parsed = parse(name);
  if (parsed.ok()) *out = *parsed;
  return In(field, parsed.status());
}

}  // namespace

absl::StatusOr<PolicyLossOptions> LossOptionsOf(const PolicyLossConfig& loss) {
  if (loss.beta() != 0 || loss.label_smoothing() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("header.loss.beta is ", loss.beta(), " and label_smoothing ",
                                                   loss.label_smoothing(),
                                                   "; a loss that is not of pairs has neither, so both must be 0"));
  }
  PolicyLossOptions options;
  QUARTET_ASSIGN_OR_RETURN(options.kind, KindOf(loss.kind()));
  options.eps_clip_low = loss.eps_clip_low();
  options.eps_clip_high = loss.eps_clip_high();
  options.dual_clip = loss.dual_clip();
  options.entropy_coefficient = loss.entropy_coef();
  options.kl_coefficient = loss.kl_coef();
  QUARTET_RETURN_IF_ERROR(ReadName(loss.kl_estimator(), ".kl_estimator", ParseKlEstimator, &options.kl_estimator));
  QUARTET_RETURN_IF_ERROR(ReadName(loss.kl_clamp(), ".kl_clamp", ParseKlClamp, &options.kl_clamp));
  QUARTET_RETURN_IF_ERROR(ReadName(loss.kl_gradient(), ".kl_gradient", ParseKlGradient, &options.kl_gradient));
  CorrectionOptions& correction = options.correction;
  QUARTET_RETURN_IF_ERROR(ReadName(loss.correction_mode(), ".correction_mode", ParseCorrectionMode, &correction.mode));
  QUARTET_RETURN_IF_ERROR(
      ReadName(loss.correction_gating(), ".correction_gating", ParseCorrectionGate, &correction.gate));
  if (correction.mode != CorrectionMode::kOff) {
    correction.low = loss.correction_low();
    correction.high = loss.correction_high();
  }
  QUARTET_RETURN_IF_ERROR(In("", CheckPolicyLossOptions(options)));
  return options;
}

bool IsPairLoss(const PolicyLossConfig& loss) {
  return loss.kind() == PolicyLossConfig::KIND_DPO || loss.kind() == PolicyLossConfig::KIND_IPO;
}

absl::StatusOr<PreferenceLossOptions> PreferenceLossOptionsOf(const PolicyLossConfig& loss) {
  PolicyLossConfig others = loss;
  others.clear_kind();
  others.clear_beta();
  others.clear_label_smoothing();
  if (others.ByteSizeLong() > 0) {
    return absl::InvalidArgumentError(absl::StrCat("header.loss has { ", others.ShortDebugString(), " }; ",
                                                   PolicyLossConfig::Kind_Name(loss.kind()),
                                                   " has beta and label_smoothing alone"));
  }
  const PreferenceLossOptions options = {
      .kind = loss.kind() == PolicyLossConfig::KIND_IPO ? PreferenceLossKind::kIpo : PreferenceLossKind::kDpo,
      .beta = loss.beta(),
      .label_smoothing = loss.label_smoothing()};
  QUARTET_RETURN_IF_ERROR(In("", CheckPreferenceLossOptions(options)));
  return options;
}

bool NeedsOldLogProbs(const PolicyLossOptions& loss) {
  const bool kl_has_ratio = loss.kl_gradient == KlGradient::kImportance || loss.kl_gradient == KlGradient::kTimesRatio;
  return TraitsOf(loss.kind).has_ratio || loss.correction.mode != CorrectionMode::kOff ||
         (loss.kl_coefficient > 0 && kl_has_ratio);
}

}  // namespace quartet

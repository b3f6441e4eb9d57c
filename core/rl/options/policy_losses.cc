#include "core/rl/options/policy_losses.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/rl/options/option_name.h"
#include "core/rl/options/token_arrays.h"

namespace quartet {
namespace {

constexpr PolicyLossTraits kPolicyLosses[] = {
    {.kind = PolicyLossConfig::KIND_SFT, .name = "sft", .is_of_runs = false, .has_advantages = false},
    {.kind = PolicyLossConfig::KIND_PPO, .name = "ppo", .has_ratio = true, .has_dual_clip = true},
    {.kind = PolicyLossConfig::KIND_GSPO,
     .name = "gspo",
     .has_ratio = true,
     .has_dual_clip = true,
     .loss_aggregation = "sequence_mean"},
    {.kind = PolicyLossConfig::KIND_GSPO_TOKEN,
     .name = "gspo_token",
     .has_ratio = true,
     .has_dual_clip = true,
     .loss_aggregation = "sequence_mean"},
    {.kind = PolicyLossConfig::KIND_SEQUENCE_PPO, .name = "sequence_ppo", .has_ratio = true, .has_dual_clip = true},
    {.kind = PolicyLossConfig::KIND_CISPO, .name = "cispo", .has_ratio = true},
    {.kind = PolicyLossConfig::KIND_REINFORCE, .name = "reinforce"},
    {.kind = PolicyLossConfig::KIND_DPO,
     .name = "dpo",
     .is_of_runs = false,
     .is_of_pairs = true,
     .has_advantages = false},
    {.kind = PolicyLossConfig::KIND_IPO,
     .name = "ipo",
     .is_of_runs = false,
     .is_of_pairs = true,
     .has_advantages = false},
};

template <typename... Parts>
absl::Status BadLoss(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status CheckCorrection(const PolicyLossConfig& loss) {
  if (CorrectionModeOf(loss) == CorrectionMode::kOff) return absl::OkStatus();
  if (!(loss.correction_low() >= 0 && loss.correction_low() < loss.correction_high())) {
    return BadLoss("correction_low is ", loss.correction_low(), " and correction_high ", loss.correction_high(),
                   "; the lower one must be at least 0, the upper one above it");
  }
  if (CorrectionGateOf(loss) == CorrectionGate::kRatio) return absl::OkStatus();
  const CorrectionMode mode = CorrectionModeOf(loss);
  if (mode != CorrectionMode::kTokenMask && mode != CorrectionMode::kSequenceMaskGeometric) {
    return BadLoss("correction_gating is \"", loss.correction_gating(),
                   "\", which is for correction_mode \"token_mask\" and "
                   "\"sequence_mask_geometric\" only");
  }
  if (loss.correction_low() != 0) {
    return BadLoss("correction_low is ", loss.correction_low(), "; a divergence (correction_gating \"",
                   loss.correction_gating(), "\") is bounded above only, so it must be 0");
  }
  return absl::OkStatus();
}

// Of a loss of pairs.
absl::Status CheckPairLoss(const PolicyLossConfig& loss) {
  PolicyLossConfig others = loss;
  others.clear_kind();
  others.clear_beta();
  others.clear_label_smoothing();
  if (others.ByteSizeLong() > 0) {
    return BadLoss("kind is ", PolicyLossConfig::Kind_Name(loss.kind()),
                   ", which has beta and label_smoothing alone, beside { ", others.ShortDebugString(), " }");
  }
  if (!(loss.beta() > 0) || !std::isfinite(loss.beta())) {
    return BadLoss("beta is ", loss.beta(), "; it must be finite and above 0");
  }
  if (!(loss.label_smoothing() >= 0 && loss.label_smoothing() < 0.5)) {
    return BadLoss("label_smoothing is ", loss.label_smoothing(), "; it must be at least 0 and below 0.5");
  }
  if (loss.kind() == PolicyLossConfig::KIND_IPO && loss.label_smoothing() != 0) {
    return BadLoss("label_smoothing is ", loss.label_smoothing(), "; it has no effect with IPO, so it must be 0");
  }
  return absl::OkStatus();
}

// That `name`, unless it is empty, is one that `parse` knows.
template <typename T>
absl::Status CheckName(const char* field, const std::string& name, absl::StatusOr<T> (*parse)(std::string_view)) {
  if (name.empty()) return absl::OkStatus();
  const absl::Status status = parse(name).status();
  return status.ok() ? status : BadLoss(field, ": ", status.message());
}

// The value that `name` stands for, `otherwise` where it is empty.
template <typename T>
T NameOr(const std::string& name, absl::StatusOr<T> (*parse)(std::string_view), T otherwise) {
  return name.empty() ? otherwise : *parse(name);
}

}  // namespace

std::span<const PolicyLossTraits> PolicyLosses() { return kPolicyLosses; }

const PolicyLossTraits* FindPolicyLoss(std::string_view name) {
  const auto* const found = std::ranges::find(kPolicyLosses, name, &PolicyLossTraits::name);
  return found == std::end(kPolicyLosses) ? nullptr : found;
}

const PolicyLossTraits& TraitsOf(PolicyLossConfig::Kind kind) {
  return *std::ranges::find(kPolicyLosses, kind, &PolicyLossTraits::kind);
}

absl::StatusOr<CorrectionMode> ParseCorrectionMode(std::string_view name) {
  return ParseOptionName<CorrectionMode>("importance correction", name,
                                         {{"off", CorrectionMode::kOff},
                                          {"token_truncate", CorrectionMode::kTokenTruncate},
                                          {"token_mask", CorrectionMode::kTokenMask},
                                          {"sequence_mask_geometric", CorrectionMode::kSequenceMaskGeometric},
                                          {"sequence_mask_product", CorrectionMode::kSequenceMaskProduct},
                                          {"sequence_truncate", CorrectionMode::kSequenceTruncate}});
}

absl::StatusOr<CorrectionGate> ParseCorrectionGate(std::string_view name) {
  return ParseOptionName<CorrectionGate>("gate of the importance correction", name,
                                         {{"ratio", CorrectionGate::kRatio},
                                          {"binary_kl", CorrectionGate::kBinaryKl},
                                          {"tv", CorrectionGate::kTotalVariation}});
}

absl::StatusOr<KlGradient> ParseKlGradient(std::string_view name) {
  return ParseOptionName<KlGradient>("gradient of the KL", name,
                                     {{"estimator", KlGradient::kEstimator},
                                      {"k2", KlGradient::kK2},
                                      {"importance", KlGradient::kImportance},
                                      {"times_ratio", KlGradient::kTimesRatio}});
}

CorrectionMode CorrectionModeOf(const PolicyLossConfig& loss) {
  return NameOr(loss.correction_mode(), ParseCorrectionMode, CorrectionMode::kOff);
}
CorrectionGate CorrectionGateOf(const PolicyLossConfig& loss) {
  return NameOr(loss.correction_gating(), ParseCorrectionGate, CorrectionGate::kRatio);
}
KlEstimator KlEstimatorOf(const PolicyLossConfig& loss) {
  return NameOr(loss.kl_estimator(), ParseKlEstimator, KlEstimator::kK3);
}
KlClamp KlClampOf(const PolicyLossConfig& loss) { return NameOr(loss.kl_clamp(), ParseKlClamp, KlClamp::kAll); }
KlGradient KlGradientOf(const PolicyLossConfig& loss) {
  return NameOr(loss.kl_gradient(), ParseKlGradient, KlGradient::kEstimator);
}

absl::Status CheckPolicyLoss(const PolicyLossConfig& loss) {
  if (std::ranges::find(kPolicyLosses, loss.kind(), &PolicyLossTraits::kind) == std::end(kPolicyLosses)) {
    return BadLoss("kind is ", static_cast<int>(loss.kind()), "; it must be ",
                   static_cast<int>(PolicyLossConfig::Kind_MIN) + 1, " to ",
                   static_cast<int>(PolicyLossConfig::Kind_MAX));
  }
  const PolicyLossTraits& traits = TraitsOf(loss.kind());
  if (traits.is_of_pairs) return CheckPairLoss(loss);
  if (loss.beta() != 0 || loss.label_smoothing() != 0) {
    return BadLoss("beta is ", loss.beta(), " and label_smoothing ", loss.label_smoothing(),
                   "; a loss that is not of pairs has neither, so both must be 0");
  }
  QUARTET_RETURN_IF_ERROR(CheckName("kl_estimator", loss.kl_estimator(), ParseKlEstimator));
  QUARTET_RETURN_IF_ERROR(CheckName("kl_clamp", loss.kl_clamp(), ParseKlClamp));
  QUARTET_RETURN_IF_ERROR(CheckName("kl_gradient", loss.kl_gradient(), ParseKlGradient));
  QUARTET_RETURN_IF_ERROR(CheckName("correction_mode", loss.correction_mode(), ParseCorrectionMode));
  QUARTET_RETURN_IF_ERROR(CheckName("correction_gating", loss.correction_gating(), ParseCorrectionGate));
  for (const auto& [field, value] : {std::pair("kl_coef", loss.kl_coef()), {"entropy_coef", loss.entropy_coef()}}) {
    if (!(value >= 0 && std::isfinite(value))) return BadLoss(field, " is ", value, "; it must be at least 0");
  }
  if (loss.kind() == PolicyLossConfig::KIND_SFT) {
    if (loss.kl_coef() != 0) {
      return BadLoss("kl_coef is ", loss.kl_coef(), "; supervised fine-tuning has no KL term, so it must be 0");
    }
    if (CorrectionModeOf(loss) != CorrectionMode::kOff) {
      return BadLoss("correction_mode is \"", loss.correction_mode(),
                     "\"; supervised fine-tuning has no rollout, so it must be \"off\"");
    }
  }
  if (traits.has_ratio && !(loss.eps_clip_low() >= 0 && loss.eps_clip_low() <= 1 && loss.eps_clip_high() >= 0)) {
    return BadLoss("eps_clip_low is ", loss.eps_clip_low(), " and eps_clip_high ", loss.eps_clip_high(),
                   "; the lower must lie in [0, 1], the upper be at least 0");
  }
  if (loss.dual_clip() != 0) {
    if (!(loss.dual_clip() > 1)) {
      return BadLoss("dual_clip is ", loss.dual_clip(), "; it must be greater than 1, or 0 for none");
    }
    if (!traits.has_dual_clip) {
      return BadLoss("dual_clip is ", loss.dual_clip(), ", which has no effect with loss \"", std::string(traits.name),
                     "\"");
    }
  }
  return CheckCorrection(loss);
}

std::vector<std::string_view> ArraysOf(const PolicyLossConfig& loss) {
  const PolicyLossTraits& traits = TraitsOf(loss.kind());
  const bool corrects = CorrectionModeOf(loss) != CorrectionMode::kOff, has_kl = loss.kl_coef() > 0;
  const KlGradient gradient = KlGradientOf(loss);
  const bool kl_has_ratio = has_kl && (gradient == KlGradient::kImportance || gradient == KlGradient::kTimesRatio);
  std::vector<std::string_view> arrays = {kLossWeights};
  if (traits.has_advantages) arrays.push_back(kAdvantages);
  if ((traits.has_ratio || corrects || kl_has_ratio) && !loss.own_old_log_probs()) arrays.push_back(kOldLogProbs);
  if (corrects) arrays.push_back(kRolloutLogProbs);
  if (has_kl || traits.is_of_pairs) arrays.push_back(kReferenceLogProbs);
  return arrays;
}

}  // namespace quartet

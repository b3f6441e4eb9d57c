#include "core/rl/policy_loss_options.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/rl/option_name.h"

namespace quartet {
namespace {

constexpr PolicyLossTraits kPolicyLosses[] = {
    {.kind = PolicyLossKind::kSft, .name = "sft"},
    {.kind = PolicyLossKind::kPpo, .name = "ppo", .has_ratio = true, .has_dual_clip = true},
    {.kind = PolicyLossKind::kGspo,
     .name = "gspo",
     .has_ratio = true,
     .has_dual_clip = true,
     .loss_aggregation = "sequence_mean"},
    {.kind = PolicyLossKind::kGspoToken,
     .name = "gspo_token",
     .has_ratio = true,
     .has_dual_clip = true,
     .loss_aggregation = "sequence_mean"},
    {.kind = PolicyLossKind::kSequencePpo, .name = "sequence_ppo", .has_ratio = true, .has_dual_clip = true},
    {.kind = PolicyLossKind::kCispo, .name = "cispo", .has_ratio = true},
    {.kind = PolicyLossKind::kReinforce, .name = "reinforce"},
};

constexpr std::string_view kNotForSft = "supervised fine-tuning has no ";

absl::Status CheckCorrection(const CorrectionOptions& options) {
  if (options.mode == CorrectionMode::kOff) return absl::OkStatus();
  if (!(options.low >= 0 && options.low < options.high)) {
    return absl::InvalidArgumentError(absl::StrCat("the correction's bounds are ", options.low, " and ", options.high,
                                                   "; the lower one must be at least 0, the upper one above it"));
  }
  if (options.gate == CorrectionGate::kRatio) return absl::OkStatus();
  if (options.mode != CorrectionMode::kTokenMask && options.mode != CorrectionMode::kSequenceMaskGeometric) {
    return absl::InvalidArgumentError(
        "the correction's gates \"binary_kl\" and \"tv\" are for its modes \"token_mask\" and "
        "\"sequence_mask_geometric\" only");
  }
  if (options.low != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the correction's lower bound is ", options.low,
                     "; a divergence (gates \"binary_kl\" and \"tv\") is bounded above only, so it must be 0"));
  }
  return absl::OkStatus();
}

}  // namespace

std::span<const PolicyLossTraits> PolicyLosses() { return kPolicyLosses; }

const PolicyLossTraits* FindPolicyLoss(std::string_view name) {
  const auto* const found = std::ranges::find(kPolicyLosses, name, &PolicyLossTraits::name);
  return found == std::end(kPolicyLosses) ? nullptr : found;
}

const PolicyLossTraits& TraitsOf(PolicyLossKind kind) {
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

absl::Status CheckPolicyLossOptions(const PolicyLossOptions& options) {
  const auto not_negative = [](double x) { return x >= 0 && std::isfinite(x); };
  if (!not_negative(options.kl_coefficient) || !not_negative(options.entropy_coefficient)) {
    return absl::InvalidArgumentError(absl::StrCat("the loss's KL coefficient ", options.kl_coefficient,
                                                   " and entropy coefficient ", options.entropy_coefficient,
                                                   " must be at least 0"));
  }
  if (options.kind == PolicyLossKind::kSft) {
    if (options.kl_coefficient != 0) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(kNotForSft), "KL term; its coefficient must be 0"));
    }
    if (options.correction.mode != CorrectionMode::kOff) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(kNotForSft), "rollout; the correction must be off"));
    }
  }
  const PolicyLossTraits& traits = TraitsOf(options.kind);
  if (traits.has_ratio && !(options.eps_clip_low >= 0 && options.eps_clip_low <= 1 && options.eps_clip_high >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("the ratio's clip range is ", options.eps_clip_low, " and ",
                                                   options.eps_clip_high,
                                                   "; the lower must lie in [0, 1], the upper be at least 0"));
  }
  if (options.dual_clip != 0) {
    if (!(options.dual_clip > 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("dual clip ", options.dual_clip, " must be greater than 1, or 0 for none"));
    }
    if (!traits.has_dual_clip) {
      return absl::InvalidArgumentError("dual clip has no effect with this policy loss; it is for ppo and gspo");
    }
  }
  return CheckCorrection(options.correction);
}

}  // namespace quartet

// Which loss the policy is trained with. Without LibTorch, so that configurations can be checked anywhere; the losses
// themselves are core/rl/losses.h. Formulas, and which options give which peer's numbers: docs/algorithms.md.
#pragma once

#include <limits>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/rl/kl.h"

namespace quartet {

// With the ratio rho_t = exp(log_prob_t - old_log_prob_t) and the advantage A_t of a token:
enum class PolicyLossKind {
  kSft,          // -log_prob: supervised fine-tuning
  kPpo,          // -min(rho A, clip(rho) A) (Schulman et al. 2017)
  kGspo,         // kPpo, rho the geometric mean over the sequence (Zheng et al. 2025): OpenRLHF, TRL
  kGspoToken,    // the value of kGspo; a token's gradient is through its own log_prob alone: GSPO-token, verl
  kSequencePpo,  // kPpo, rho the product over the sequence: TRL's RLOO
  kCispo,        // -detach(clip(rho)) A log_prob (MiniMax 2025)
  kReinforce,    // -A log_prob (Williams 1992)
};

// A row for each; defaults and checks go by them.
struct PolicyLossTraits {
  PolicyLossKind kind = PolicyLossKind::kPpo;
  std::string_view name;  // in algorithm.policy_loss; "sft" is fine-tuning's, which no run names
  // There is a ratio, bounded by eps_clip_low and _high, so that old log-probabilities are needed.
  bool has_ratio = false;
  bool has_dual_clip = false;
  // Default of algorithm.loss_aggregation, where the estimator has none of its own.
  std::string_view loss_aggregation = "token_mean";
};
std::span<const PolicyLossTraits> PolicyLosses();
// Null where none has the name.
const PolicyLossTraits* FindPolicyLoss(std::string_view name);
const PolicyLossTraits& TraitsOf(PolicyLossKind kind);

// The weight w of a token that corrects for the rollout having sampled with probabilities other than the trainer's.
// With r_t = exp(old_log_prob_t - rollout_log_prob_t), their product P over the sequence, and `low` and `high`:
enum class CorrectionMode {
  kOff,
  kTokenTruncate,          // clamp(r_t): truncated importance sampling (Yao et al. 2025)
  kTokenMask,              // r_t where the token's gate is in [low, high], else 0: IcePop
  kSequenceMaskGeometric,  // r_t where the mean of the gate over the sequence is in [low, high], else 0: OpenRLHF's
                           // "seq"
  kSequenceMaskProduct,    // P where it is in [low, high], else 0: TRL's "sequence_mask"
  kSequenceTruncate,       // clamp(P): TRL's "sequence_truncate", verl's "sequence"
};

// "off", "token_truncate", "token_mask", "sequence_mask_geometric", "sequence_mask_product" or "sequence_truncate";
// anything else is INVALID_ARGUMENT.
absl::StatusOr<CorrectionMode> ParseCorrectionMode(std::string_view name);

// What kTokenMask and kSequenceMaskGeometric look at, p being the rollout's probability of the token and q the old one.
enum class CorrectionGate {
  kRatio,           // r_t; over a sequence the geometric mean
  kBinaryKl,        // p log(p / q) + (1 - p) log((1 - p) / (1 - q)); over a sequence the mean
  kTotalVariation,  // |p - q|; over a sequence the mean
};

// "ratio", "binary_kl" or "tv"; anything else is INVALID_ARGUMENT.
absl::StatusOr<CorrectionGate> ParseCorrectionGate(std::string_view name);

struct CorrectionOptions {
  CorrectionMode mode = CorrectionMode::kOff;
  // Other than kRatio only for kTokenMask and kSequenceMaskGeometric.
  CorrectionGate gate = CorrectionGate::kRatio;
  // 0 <= low < high. low is 0 for kBinaryKl and kTotalVariation. A geometric mean wants bounds near 1.
  double low = 0;
  double high = std::numeric_limits<double>::infinity();
};

// How the KL of the loss is differentiated.
enum class KlGradient {
  kEstimator,   // through the estimator's formula
  kK2,          // value of the estimator, gradient of k2: verl's "k1+", "k3+"
  kImportance,  // as kK2, times min(rho, 10), detached: OpenRLHF's unbiased_gradient
  kTimesRatio,  // value and gradient of the estimate times rho: TRL's use_bias_correction_kl
};

// "estimator", "k2", "importance" or "times_ratio"; anything else is INVALID_ARGUMENT.
absl::StatusOr<KlGradient> ParseKlGradient(std::string_view name);

struct PolicyLossOptions {
  PolicyLossKind kind = PolicyLossKind::kPpo;
  // The ratio is clipped to [1 - eps_clip_low, 1 + eps_clip_high]; low in [0, 1], high not negative.
  double eps_clip_low = 0.2;
  double eps_clip_high = 0.2;
  // kPpo, kGspo, kGspoToken, kSequencePpo; negative advantages: the loss of a token is at most dual_clip * |advantage|.
  // Off at 0, else greater than 1.
  double dual_clip = 0;

  // Not for kSft.
  CorrectionOptions correction;

  // Adds kl_coefficient * KL to the reference. 0: no reference is needed; not negative. Not for kSft.
  double kl_coefficient = 0;
  KlEstimator kl_estimator = KlEstimator::kK3;
  KlClamp kl_clamp = KlClamp::kAll;
  KlGradient kl_gradient = KlGradient::kEstimator;

  // Subtracts entropy_coefficient * entropy; not negative.
  double entropy_coefficient = 0;
};

// INVALID_ARGUMENT for values out of their range, and for those that would have no effect with this kind.
absl::Status CheckPolicyLossOptions(const PolicyLossOptions& options);

}  // namespace quartet

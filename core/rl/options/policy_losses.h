// The losses that the policy is trained with, a row for each, and what a message may ask of them. Without LibTorch, so
// that configurations and calls can be checked anywhere; the losses themselves are core/rl/losses.h and
// core/rl/pairs/pair_losses.h. Formulas, and which options give which peer's numbers: docs/algorithms.md.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/rl/options/kl_estimator.h"
#include "proto/policy_trainer.pb.h"

namespace quartet {

// With the ratio rho_t = exp(log_prob_t - old_log_prob_t) and the advantage A_t of a token:
//   sft           -log_prob: supervised fine-tuning
//   ppo           -min(rho A, clip(rho) A) (Schulman et al. 2017)
//   gspo          ppo, rho the geometric mean over the sequence (Zheng et al. 2025): OpenRLHF, TRL
//   gspo_token    the value of gspo; a token's gradient is through its own log_prob alone: GSPO-token, verl
//   sequence_ppo  ppo, rho the product over the sequence: TRL's RLOO
//   cispo         -detach(clip(rho)) A log_prob (MiniMax 2025)
//   reinforce     -A log_prob (Williams 1992)
// and of pairs, with h (core/rl/pairs/pair_losses.h):
//   dpo           -(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h) (Rafailov et al. 2023; s, the label smoothing:
//                 Mitchell 2023, cDPO)
//   ipo           (h - 1 / (2 beta))^2 (Azar et al. 2023)
struct PolicyLossTraits {
  PolicyLossConfig::Kind kind = PolicyLossConfig::KIND_UNSPECIFIED;
  std::string_view name;
  bool is_of_runs = true;  // algorithm.policy_loss may name it; other programs take the others
  bool is_of_pairs = false;
  bool has_advantages = true;
  // There is a ratio, bounded by eps_clip_low and _high, so that old log-probabilities are needed.
  bool has_ratio = false;
  bool has_dual_clip = false;
  // Default of algorithm.loss_aggregation, where the estimator has none of its own.
  std::string_view loss_aggregation = "token_mean";
};
std::span<const PolicyLossTraits> PolicyLosses();
// Null where none has the name.
const PolicyLossTraits* FindPolicyLoss(std::string_view name);
// Of a kind that has a row.
const PolicyLossTraits& TraitsOf(PolicyLossConfig::Kind kind);

// What is out of its range, unknown, or without effect for the loss's kind is INVALID_ARGUMENT and begins with the
// name of the field.
absl::Status CheckPolicyLoss(const PolicyLossConfig& loss);

// What follows is of a loss for which CheckPolicyLoss holds. The arrays that it reads of each sequence.
std::vector<std::string_view> ArraysOf(const PolicyLossConfig& loss);

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

// How the KL of the loss is differentiated.
enum class KlGradient {
  kEstimator,   // through the estimator's formula
  kK2,          // value of the estimator, gradient of k2: verl's "k1+", "k3+"
  kImportance,  // as kK2, times min(rho, 10), detached: OpenRLHF's unbiased_gradient
  kTimesRatio,  // value and gradient of the estimate times rho: TRL's use_bias_correction_kl
};

// "estimator", "k2", "importance" or "times_ratio"; anything else is INVALID_ARGUMENT.
absl::StatusOr<KlGradient> ParseKlGradient(std::string_view name);

// By the fields of these names; of an empty one kOff, kRatio, kK3, kAll, kEstimator.
CorrectionMode CorrectionModeOf(const PolicyLossConfig& loss);
CorrectionGate CorrectionGateOf(const PolicyLossConfig& loss);
KlEstimator KlEstimatorOf(const PolicyLossConfig& loss);
KlClamp KlClampOf(const PolicyLossConfig& loss);
KlGradient KlGradientOf(const PolicyLossConfig& loss);

}  // namespace quartet

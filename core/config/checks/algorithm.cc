#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/config/batches/updates.h"
#include "core/config/checks/checks.h"
#include "core/config/checks/conditions.h"
#include "core/config/services.h"
#include "core/rl/estimators.h"
#include "core/rl/policy_losses.h"

namespace quartet {

namespace {

absl::Status CheckEstimator(const AlgorithmConfig& a) {
  std::vector<std::string> names;
  for (const AdvantageEstimator& estimator : AdvantageEstimators()) names.emplace_back(estimator.name);
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.advantage_estimator", a.advantage_estimator(), names));
  const AdvantageEstimator& estimator = EstimatorOf(a);
  QUARTET_RETURN_IF_ERROR(Real("algorithm.gamma", a.gamma(), 0, 1));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.lambd", a.lambd(), 0, 1));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.value_clip", a.value_clip(), 0, kInfinity));
  QUARTET_RETURN_IF_ERROR(Integer("algorithm.max_epochs", a.max_epochs(), 1));
  if (estimator.needs_critic) {
    QUARTET_RETURN_IF_ERROR(Integer("algorithm.critic_epochs", a.critic_epochs(), 1));
    QUARTET_RETURN_IF_ERROR(Integer("algorithm.critic_warmup_steps", a.critic_warmup_steps(), 0));
  }
  if (estimator.divides) {
    QUARTET_RETURN_IF_ERROR(Real("algorithm.group_std_eps", a.group_std_eps(), 0, kInfinity, /*open_low=*/true));
    QUARTET_RETURN_IF_ERROR(OneOf("algorithm.group_std_scale", a.group_std_scale(), {"group", "batch"}));
  }
  if (estimator.has_baseline) {
    QUARTET_RETURN_IF_ERROR(OneOf("algorithm.group_baseline", a.group_baseline(), {"mean", "leave_one_out"}));
  }
  if (estimator.compares()) {
    if (a.gamma() != 1) {
      return NoEffect("algorithm.gamma", absl::StrCat("algorithm.advantage_estimator is \"", a.advantage_estimator(),
                                                      "\", which is of whole answers"));
    }
    QUARTET_RETURN_IF_ERROR(
        OneOf("algorithm.reward_clip_placement", a.reward_clip_placement(), {"after_baseline", "before_baseline"}));
  }
  QUARTET_RETURN_IF_ERROR(
      OneOf("algorithm.advantage_normalization", a.advantage_normalization(), {"whiten", "center", "none"}));
  if (a.advantage_normalization() != "whiten") return absl::OkStatus();
  return OneOf("algorithm.whitening_variance", a.whitening_variance(), {"population", "unbiased"});
}

absl::Status CheckLoss(const AlgorithmConfig& a) {
  std::vector<std::string> names;
  for (const PolicyLossTraits& loss : PolicyLosses()) {
    if (loss.is_of_runs) names.emplace_back(loss.name);
  }
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.policy_loss", a.policy_loss(), names));
  const PolicyLossTraits& loss = *FindPolicyLoss(a.policy_loss());
  if (loss.has_ratio) {
    for (const auto& [field, value] : {std::pair("algorithm.eps_clip", a.eps_clip()),
                                       {"algorithm.eps_clip_low", a.eps_clip_low()},
                                       {"algorithm.eps_clip_high", a.eps_clip_high()}}) {
      QUARTET_RETURN_IF_ERROR(Real(field, value, 0, kInfinity, /*open_low=*/true));
    }
  } else if (a.old_log_prob_source() == "rollout") {
    return NoEffect("algorithm.old_log_prob_source",
                    absl::StrCat("algorithm.policy_loss is \"", a.policy_loss(), "\""));
  }
  if (a.eps_clip_low() > 1) {
    QUARTET_RETURN_IF_ERROR(Real("algorithm.eps_clip_low", a.eps_clip_low(), 0, 1, /*open_low=*/true));
  }
  if (a.dual_clip() != 0 && !(a.dual_clip() > 1 && std::isfinite(a.dual_clip()))) {
    return Bad("algorithm.dual_clip", absl::StrCat(a.dual_clip()), "it must be 0 (off) or greater than 1");
  }
  QUARTET_RETURN_IF_ERROR(Real("algorithm.entropy_coef", a.entropy_coef(), 0, kInfinity));
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.loss_aggregation", a.loss_aggregation(),
                                {"token_mean", "sequence_mean", "sequence_sum_over_constant"}));
  if (a.loss_aggregation() == "sequence_sum_over_constant") {
    QUARTET_RETURN_IF_ERROR(Real("algorithm.loss_constant", a.loss_constant(), 0, kInfinity, /*open_low=*/true));
  }
  return OneOf("algorithm.old_log_prob_source", a.old_log_prob_source(), {"trainer", "rollout", "auto"});
}

absl::Status CheckImportanceCorrection(const AlgorithmConfig& a) {
  const ImportanceCorrectionConfig& i = a.importance_correction();
  const auto field = [](absl::string_view leaf) { return absl::StrCat("algorithm.importance_correction.", leaf); };
  QUARTET_RETURN_IF_ERROR(OneOf(field("mode"), i.mode(),
                                {"off", "token_truncate", "token_mask", "sequence_mask_geometric",
                                 "sequence_mask_product", "sequence_truncate"}));
  if (i.mode() == "off") return absl::OkStatus();
  if (a.old_log_prob_source() == "rollout") {
    return NoEffect(field("mode"), "algorithm.old_log_prob_source is \"rollout\", so that every weight is 1");
  }
  QUARTET_RETURN_IF_ERROR(Real(field("threshold_low"), i.threshold_low(), 0, kInfinity));
  QUARTET_RETURN_IF_ERROR(Real(field("threshold_high"), i.threshold_high(), 0, kInfinity, /*open_low=*/true));
  if (i.threshold_low() >= i.threshold_high()) {
    return Bad(field("threshold_low"), absl::StrCat(i.threshold_low()),
               absl::StrCat("it must be below ", field("threshold_high"), " (", i.threshold_high(), ")"));
  }
  return i.gating().empty() ? absl::OkStatus() : OneOf(field("gating"), i.gating(), {"ratio", "binary_kl", "tv"});
}

// 1 / the largest relative error that an adaptive coefficient follows (core/rl/kl.h).
constexpr double kStepsToZero = 5;

absl::Status CheckKl(const RunConfig& c) {
  const KlConfig& k = c.algorithm().kl();
  QUARTET_RETURN_IF_ERROR(Real("algorithm.kl.init_kl_coef", k.init_kl_coef(), 0, kInfinity));
  const bool on = k.init_kl_coef() != 0;
  if (on) {
    QUARTET_RETURN_IF_ERROR(OneOf("algorithm.kl.kl_estimator", k.kl_estimator(), {"k1", "k2", "k3"}));
    QUARTET_RETURN_IF_ERROR(OneOf("algorithm.kl.kl_clamp", k.kl_clamp(), {"all", "k3", "none"}));
  }
  if (k.use_kl_loss()) {
    QUARTET_RETURN_IF_ERROR(
        OneOf("algorithm.kl.kl_gradient", k.kl_gradient(), {"estimator", "k2", "importance", "times_ratio"}));
  }
  if (!k.kl_placement().empty()) {
    QUARTET_RETURN_IF_ERROR(OneOf("algorithm.kl.kl_placement", k.kl_placement(), {"token", "sequence"}));
  }
  QUARTET_RETURN_IF_ERROR(Real("algorithm.kl.kl_target", k.kl_target(), 0, kInfinity));
  if (k.kl_target() == 0) return absl::OkStatus();
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.kl.kl_mean", k.kl_mean(), {"token", "sequence"}));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.kl.kl_horizon", k.kl_horizon(), 0, kInfinity, /*open_low=*/true));
  // In one step the coefficient may go down by a fifth of sequences / horizon: to 0, and to stay there, or below.
  const int64_t sequences = SequencesPerBatch(c);
  if (static_cast<double>(sequences) < kStepsToZero * static_cast<double>(k.kl_horizon())) return absl::OkStatus();
  return Bad("algorithm.kl.kl_horizon", absl::StrCat(k.kl_horizon()),
             absl::StrCat("it must be above ", static_cast<double>(sequences) / kStepsToZero, ", a fifth of a step's ",
                          sequences,
                          " sequences (rollout.rollout_batch_size * n_samples_per_prompt): one step could take the "
                          "coefficient to 0 otherwise"));
}

absl::Status CheckDynamicSampling(const DynamicSamplingConfig& d) {
  const auto field = [](absl::string_view leaf) { return absl::StrCat("algorithm.dynamic_sampling.", leaf); };
  QUARTET_RETURN_IF_ERROR(OneOf(field("filter"), d.filter(), {"none", "not_equal", "mean_inside"}));
  if (d.filter() == "mean_inside" && !(d.range_low() < d.range_high())) {
    return Bad(field("range_low"), absl::StrCat(d.range_low()),
               absl::StrCat("it must be below ", field("range_high"), " (", d.range_high(), ")"));
  }
  return Integer(field("max_num_gen_batches"), d.max_num_gen_batches(), 0);
}

}  // namespace

absl::Status CheckAlgorithm(const RunConfig& c) {
  const AlgorithmConfig& a = c.algorithm();
  QUARTET_RETURN_IF_ERROR(CheckEstimator(a));
  QUARTET_RETURN_IF_ERROR(CheckLoss(a));
  QUARTET_RETURN_IF_ERROR(CheckImportanceCorrection(a));
  QUARTET_RETURN_IF_ERROR(CheckKl(c));
  QUARTET_RETURN_IF_ERROR(CheckDynamicSampling(a.dynamic_sampling()));

  QUARTET_RETURN_IF_ERROR(Real("algorithm.reward_clip_min", a.reward_clip_min(), -kInfinity, kInfinity));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.reward_clip_max", a.reward_clip_max(), -kInfinity, kInfinity));
  if (!(a.reward_clip_min() < a.reward_clip_max())) {
    return Bad("algorithm.reward_clip_min", absl::StrCat(a.reward_clip_min()),
               absl::StrCat("it must be below algorithm.reward_clip_max (", a.reward_clip_max(), ")"));
  }
  QUARTET_RETURN_IF_ERROR(
      Integer("algorithm.overlong_buffer_len", a.overlong_buffer_len(), 0, c.rollout().generate_max_len()));
  return Real("algorithm.overlong_penalty_factor", a.overlong_penalty_factor(), 0, kInfinity);
}

// A group of one has no other sample to be compared with.
absl::Status CheckGroups(const RunConfig& c) {
  const int samples = c.rollout().n_samples_per_prompt();
  if (samples > 1) return absl::OkStatus();
  constexpr char kNeedsTwo[] =
      "it compares the answers to one prompt, so that rollout.n_samples_per_prompt must be 2 or more";
  if (EstimatorOf(c.algorithm()).compares()) {
    return Bad("algorithm.advantage_estimator", absl::StrCat("\"", c.algorithm().advantage_estimator(), "\""),
               kNeedsTwo);
  }
  if (c.algorithm().dynamic_sampling().filter() == "not_equal") {
    return Bad("algorithm.dynamic_sampling.filter", "\"not_equal\"", kNeedsTwo);
  }
  return absl::OkStatus();
}

// `eps_clip` is what the two sides default to, so this is looked at before defaults are filled in. A resolved
// configuration has all three; eps_clip is refused only where it decides nothing.
absl::Status CheckClipOverlap(const AlgorithmConfig& a) {
  if (a.has_eps_clip() && a.has_eps_clip_low() && a.has_eps_clip_high() && a.eps_clip() != a.eps_clip_low() &&
      a.eps_clip() != a.eps_clip_high()) {
    // The default is what resolving itself writes there.
    if (a.eps_clip() == 0.2f) return absl::OkStatus();
    return NoEffect("algorithm.eps_clip", "algorithm.eps_clip_low and algorithm.eps_clip_high are both set");
  }
  return absl::OkStatus();
}

absl::Status CheckReference(const RunConfig& c) {
  if (!UsesReference(c)) return absl::OkStatus();
  QUARTET_RETURN_IF_ERROR(Dtype("reference.dtype", c.reference().dtype()));
  QUARTET_RETURN_IF_ERROR(Stage("reference.zero_stage", c.reference().zero_stage(), {0, 3}));
  const int64_t budget = c.reference().max_tokens_per_micro_batch();
  if (budget == 0 && c.actor().max_tokens_per_micro_batch() == 0) return absl::OkStatus();
  if (budget == 0) {
    return Bad("reference.max_tokens_per_micro_batch", "0",
               absl::StrCat("actor.max_tokens_per_micro_batch is ", c.actor().max_tokens_per_micro_batch(),
                            ", so that there is no number of sequences to go by; leave it out to take the actor's"));
  }
  return TokenBudget("reference.max_tokens_per_micro_batch", budget, "actor.max_len", c.actor().max_len());
}

}  // namespace quartet

#include <cmath>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/config/checks/checks.h"
#include "core/config/checks/conditions.h"

namespace quartet {

absl::Status CheckAlgorithm(const AlgorithmConfig& a) {
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.advantage_estimator", a.advantage_estimator(), {"gae"}));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.gamma", a.gamma(), 0, 1));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.lambd", a.lambd(), 0, 1));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.eps_clip", a.eps_clip(), 0, kInfinity, /*open_low=*/true));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.eps_clip_low", a.eps_clip_low(), 0, 1, /*open_low=*/true));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.eps_clip_high", a.eps_clip_high(), 0, kInfinity, /*open_low=*/true));
  if (a.dual_clip() != 0 && !(a.dual_clip() > 1 && std::isfinite(a.dual_clip()))) {
    return Bad("algorithm.dual_clip", absl::StrCat(a.dual_clip()), "it must be 0 (off) or greater than 1");
  }
  QUARTET_RETURN_IF_ERROR(Real("algorithm.value_clip", a.value_clip(), 0, kInfinity));

  const KlConfig& k = a.kl();
  QUARTET_RETURN_IF_ERROR(Real("algorithm.kl.init_kl_coef", k.init_kl_coef(), 0, kInfinity));
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.kl.kl_estimator", k.kl_estimator(), {"k1", "k2", "k3"}));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.kl.kl_target", k.kl_target(), 0, kInfinity));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.kl.kl_horizon", k.kl_horizon(), 0, kInfinity, /*open_low=*/true));
  if (k.init_kl_coef() == 0) {
    constexpr char kNoKl[] = "algorithm.kl.init_kl_coef is 0, so there is no KL penalty";
    if (k.kl_target() != 0) return NoEffect("algorithm.kl.kl_target", kNoKl);
    if (k.kl_estimator() != "k1") return NoEffect("algorithm.kl.kl_estimator", kNoKl);
  }
  if (k.kl_target() == 0 && k.kl_horizon() != 10000) {
    return NoEffect("algorithm.kl.kl_horizon", "algorithm.kl.kl_target is 0, so the coefficient does not adapt");
  }

  QUARTET_RETURN_IF_ERROR(Real("algorithm.reward_clip_min", a.reward_clip_min(), -kInfinity, kInfinity));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.reward_clip_max", a.reward_clip_max(), -kInfinity, kInfinity));
  if (!(a.reward_clip_min() < a.reward_clip_max())) {
    return Bad("algorithm.reward_clip_min", absl::StrCat(a.reward_clip_min()),
               absl::StrCat("it must be below algorithm.reward_clip_max (", a.reward_clip_max(), ")"));
  }
  QUARTET_RETURN_IF_ERROR(
      OneOf("algorithm.advantage_normalization", a.advantage_normalization(), {"whiten", "center", "none"}));
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.loss_aggregation", a.loss_aggregation(), {"token_mean", "sequence_mean"}));
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.old_log_prob_source", a.old_log_prob_source(), {"trainer", "rollout"}));
  return Integer("algorithm.max_epochs", a.max_epochs(), 1);
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
  if (c.algorithm().kl().init_kl_coef() == 0) {
    if (c.has_reference() && c.reference().ByteSizeLong() > 0) {
      return NoEffect(c.reference().pretrain().empty() ? "reference" : "reference.pretrain",
                      "algorithm.kl.init_kl_coef is 0, so no reference model is loaded");
    }
    return absl::OkStatus();
  }
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

absl::Status CheckReward(const RunConfig& c) {
  const RewardConfig& w = c.reward();
  std::set<std::string> names;
  bool any_model = false;
  for (int i = 0; i < w.source_size(); ++i) {
    const RewardSource& s = w.source(i);
    const auto field = [i](absl::string_view leaf) { return absl::StrCat("reward.source[", i, "].", leaf); };
    if (s.rule().empty() == s.model().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("reward.source[", i,
                       "]: ", s.rule().empty() ? "neither rule nor model is set" : "both rule and model are set",
                       "; set exactly one of them"));
    }
    QUARTET_RETURN_IF_ERROR(Real(field("weight"), s.weight(), -kInfinity, kInfinity));
    if (s.weight() == 0) return NoEffect(absl::StrCat("reward.source[", i, "]"), "its weight is 0");
    if (!s.rule().empty()) {
      QUARTET_RETURN_IF_ERROR(OneOf(field("rule"), s.rule(), {"exact_match", "number"}));
      if (!s.dtype().empty()) return NoEffect(field("dtype"), "a rule has no model");
      if (s.has_zero_stage()) return NoEffect(field("zero_stage"), "a rule has no model");
    } else {
      any_model = true;
      QUARTET_RETURN_IF_ERROR(Dtype(field("dtype"), s.dtype()));
      QUARTET_RETURN_IF_ERROR(Stage(field("zero_stage"), s.zero_stage(), {0, 3}));
    }
    if (!names.insert(s.name()).second) {
      return Bad(field("name"), absl::StrCat("\"", s.name(), "\""), "another source has this name already; set name");
    }
  }
  if (!any_model) {
    constexpr char kNoModel[] = "no reward.source is a model";
    if (w.has_micro_rollout_batch_size()) return NoEffect("reward.micro_rollout_batch_size", kNoModel);
    if (w.has_max_tokens_per_micro_batch()) return NoEffect("reward.max_tokens_per_micro_batch", kNoModel);
    return absl::OkStatus();
  }
  if (w.max_tokens_per_micro_batch() == 0) {
    return Integer("reward.micro_rollout_batch_size", w.micro_rollout_batch_size(), 1);
  }
  if (w.has_micro_rollout_batch_size()) return BothLimits("reward", "micro_rollout_batch_size");
  return TokenBudget("reward.max_tokens_per_micro_batch", w.max_tokens_per_micro_batch(), "actor.max_len",
                     c.actor().max_len());
}

}  // namespace quartet

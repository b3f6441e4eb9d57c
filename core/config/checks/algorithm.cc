#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/config/batches/updates.h"
#include "core/config/checks/checks.h"
#include "core/config/conditions.h"
#include "core/config/services.h"
#include "core/rl/options/estimators.h"
#include "core/rl/options/policy_losses.h"

namespace quartet {

namespace {

absl::Status CheckEstimator(const AlgorithmConfig& a) {
  std::vector<std::string> names;
  for (const AdvantageEstimator& estimator : AdvantageEstimators()) names.emplace_back(estimator.name);
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.advantage_estimator", a.advantage_estimator(), names));
  const AdvantageCommandConfig& program = a.advantage_command();
  if (EstimatorOf(a).by_program && program.command().empty()) {
    return Bad("algorithm.advantage_command.command", "\"\"",
               "algorithm.advantage_estimator \"command\" needs the program that gives the advantages");
  }
  for (const std::string& array : program.arrays()) {
    QUARTET_RETURN_IF_ERROR(OneOf("algorithm.advantage_command.arrays", array,
                                  {"ids", "rollout_log_probs", "log_probs", "reference_log_probs"}));
  }
  if (!EstimatorOf(a).is_of_whole_answers() || a.gamma() == 1) return absl::OkStatus();
  return NoEffect("algorithm.gamma", absl::StrCat("algorithm.advantage_estimator is \"", a.advantage_estimator(),
                                                  "\", which is of whole answers"));
}

absl::Status CheckLoss(const AlgorithmConfig& a) {
  std::vector<std::string> names;
  for (const PolicyLossTraits& loss : PolicyLosses()) {
    if (loss.is_of_runs) names.emplace_back(loss.name);
  }
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.policy_loss", a.policy_loss(), names));
  if (!FindPolicyLoss(a.policy_loss())->has_ratio && a.old_log_prob_source() == "rollout") {
    return NoEffect("algorithm.old_log_prob_source",
                    absl::StrCat("algorithm.policy_loss is \"", a.policy_loss(), "\""));
  }
  if (a.dual_clip() != 0 && a.dual_clip() <= 1) {
    return Bad("algorithm.dual_clip", absl::StrCat(a.dual_clip()), "it must be 0 (off) or greater than 1");
  }
  return absl::OkStatus();
}

absl::Status CheckImportanceCorrection(const AlgorithmConfig& a) {
  const ImportanceCorrectionConfig& i = a.importance_correction();
  const auto field = [](absl::string_view leaf) { return absl::StrCat("algorithm.importance_correction.", leaf); };
  if (i.mode() == "off") return absl::OkStatus();
  if (a.old_log_prob_source() == "rollout") {
    return NoEffect(field("mode"), "algorithm.old_log_prob_source is \"rollout\", so that every weight is 1");
  }
  if (i.threshold_low() >= i.threshold_high()) {
    return Bad(field("threshold_low"), absl::StrCat(i.threshold_low()),
               absl::StrCat("it must be below ", field("threshold_high"), " (", i.threshold_high(), ")"));
  }
  return absl::OkStatus();
}

// 1 / the largest relative error that an adaptive coefficient follows (core/rl/kl.h).
constexpr double kStepsToZero = 5;

absl::Status CheckKl(const RunConfig& c) {
  const KlConfig& k = c.algorithm().kl();
  if (k.kl_target() == 0) return absl::OkStatus();
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
  if (d.filter() == "mean_inside" && !(d.range_low() < d.range_high())) {
    return Bad(field("range_low"), absl::StrCat(d.range_low()),
               absl::StrCat("it must be below ", field("range_high"), " (", d.range_high(), ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAlgorithm(const RunConfig& c) {
  const AlgorithmConfig& a = c.algorithm();
  QUARTET_RETURN_IF_ERROR(CheckEstimator(a));
  QUARTET_RETURN_IF_ERROR(CheckLoss(a));
  QUARTET_RETURN_IF_ERROR(CheckImportanceCorrection(a));
  QUARTET_RETURN_IF_ERROR(CheckKl(c));
  QUARTET_RETURN_IF_ERROR(CheckDynamicSampling(a.dynamic_sampling()));

  if (!(a.reward_clip_min() < a.reward_clip_max())) {
    return Bad("algorithm.reward_clip_min", absl::StrCat(a.reward_clip_min()),
               absl::StrCat("it must be below algorithm.reward_clip_max (", a.reward_clip_max(), ")"));
  }
  return Integer("algorithm.overlong_buffer_len", a.overlong_buffer_len(), 0, c.rollout().generate_max_len());
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
  if (!ReferenceOf(c).has_value()) return absl::OkStatus();
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

#include "orchestrator/loop/report/step_warnings.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/placement.h"
#include "core/config/services.h"
#include "core/rewards/labels/labels.h"
#include "core/zero/optimizer/optimizer_options.h"

namespace quartet {
namespace {

// Beyond it a model is soon noise, where a step moves each parameter by about so much.
constexpr double kLargeLearningRate = 0.01;

// The first figure that says that nearly every answer to a source lacked the end of its reasoning; "" where none does.
std::string UnfinishedReasoning(const Metrics& metrics, double least) {
  for (const auto& [name, value] : metrics.values()) {
    if (absl::StartsWith(name, "reward/") && absl::EndsWith(name, absl::StrCat("/", kUnfinishedReasoning)) &&
        value >= least) {
      return name;
    }
  }
  return "";
}

}  // namespace

std::vector<std::string> ConfigurationWarnings(const RunConfig& config) {
  std::vector<std::string> warnings = PlacementWarnings(config);
  const auto check = [&](const std::string& name, const TrainerConfig& trainer) {
    if (!IsScaleFree(trainer) || trainer.learning_rate() <= kLargeLearningRate) return;
    warnings.push_back(
        absl::StrFormat("%s.learning_rate is %g: each step moves each parameter by about so much; "
                        "rates that train language models are 1e-7 to 1e-3",
                        name, trainer.learning_rate()));
  };
  check("actor", config.actor());
  if (UsesCritic(config)) check("critic", config.critic());
  const int64_t one_turn = int64_t{config.data().prompt_max_len()} + config.rollout().generate_max_len();
  if (HasAgent(config) && config.agent().max_turns() > 1 && LongestSequence(config) <= one_turn) {
    warnings.push_back(absl::StrCat("actor.max_len is ", LongestSequence(config),
                                    ", which one prompt and one answer of the longest fill (data.prompt_max_len + "
                                    "rollout.generate_max_len): an episode of up to ",
                                    config.agent().max_turns(),
                                    " turns (agent.max_turns) may have no room for a second answer, "
                                    "or for the whole of it; raise actor.max_len"));
  }
  return warnings;
}

std::string StepWarnings::WhyIdle(const Metrics& metrics) const {
  const AlgorithmConfig& algorithm = config_.algorithm();
  const auto is = [&](const char* name, double value) { return metrics.Get(name) == value; };
  // Answers of equal sums may teach which of their tokens are worth more.
  const bool tells_by_sums = metrics.Get("token_rewards/before_last").value_or(0) == 0;
  if (is("response_length/excluded", 1)) {
    return absl::StrCat("every answer was cut off at rollout.generate_max_len (", config_.rollout().generate_max_len(),
                        ") and is left out of the loss (algorithm.overlong_filtering)");
  }
  const bool has_rewards = HasRewards(config_);
  if (!has_rewards && !LearnsWithoutRewards(config_)) {
    return "the weight of every source of rewards is 0 (reward.source.weight)";
  }
  if (has_rewards && tells_by_sums && is("reward/std", 0)) {
    if (const std::string name = UnfinishedReasoning(metrics, kMostUnfinished); !name.empty()) {
      return absl::StrFormat(
          "all rewards were equal (%g), and %s is %.2f: in so many answers reward.source.reasoning_delimiter is not. "
          "Is "
          "it as the model writes it (samples.jsonl), and are answers cut off before (rollout.generate_max_len, %d)?",
          metrics.Get("reward/mean").value_or(0), name, metrics.Get(name).value_or(0),
          config_.rollout().generate_max_len());
    }
    return absl::StrFormat(
        "all rewards were equal (%g). Is the reward what it should be (samples.jsonl), and can the model do the task "
        "at all?",
        metrics.Get("reward/mean").value_or(0));
  }
  if (has_rewards && tells_by_sums && (is("reward/shaped_std", 0) || is("reward/groups_without_signal", 1))) {
    if (metrics.Get("reward/clipped").value_or(0) > 0) {
      return absl::StrFormat(
          "rewards differ, and are equal once they are clipped (algorithm.reward_clip_min and _max, %g and %g)",
          algorithm.reward_clip_min(), algorithm.reward_clip_max());
    }
    return "rewards differ between prompts and not between the answers to one prompt, and an advantage is what an "
           "answer is better than the others to its prompt";
  }
  if (!is("policy/grad_norm", 0) || !is("policy/skipped", 0)) return "";
  if (is("correction/masked", 1)) return "every token's weight is 0 (algorithm.importance_correction)";
  if (!has_rewards && is("kl/mean", 0)) {
    return "the policy and its teacher (reference.pretrain) give all tokens the same probabilities";
  }
  return "the policy's gradient was 0";
}

std::vector<std::string> StepWarnings::Of(const Metrics& metrics) {
  std::vector<std::string> warnings;
  const std::string why = WhyIdle(metrics);
  idle_steps_ = why.empty() ? 0 : idle_steps_ + 1;
  if (idle_steps_ >= kIdleSteps && !said_idle_) {
    said_idle_ = true;
    warnings.push_back(absl::StrCat("nothing can be learned from the last ", kIdleSteps, " steps: ", why));
  }
  const double excluded = metrics.Get("response_length/excluded").value_or(0);
  if (excluded >= kMostExcluded && !said_excluded_) {
    said_excluded_ = true;
    warnings.push_back(absl::StrFormat(
        "%.0f %% of a step's answers were cut off at rollout.generate_max_len (%d) and are left out of the loss "
        "(algorithm.overlong_filtering)",
        100 * excluded, config_.rollout().generate_max_len()));
  }
  const double kl = metrics.Get("kl/mean").value_or(0);
  // Of a student that is far from its teacher it says nothing.
  if (kl > kMostKl && !said_kl_ && HasRewards(config_)) {
    said_kl_ = true;
    warnings.push_back(
        absl::StrFormat("the policy's KL from its reference is %.3g a token: its answers are hardly a "
                        "language any more (samples.jsonl). A lower actor.learning_rate or a higher "
                        "algorithm.kl.init_kl_coef holds it back",
                        kl));
  }
  if (const double failed = metrics.Get("scorer/failed_tries").value_or(0); failed > 0 && !said_failed_) {
    said_failed_ = true;
    warnings.push_back(absl::StrFormat(
        "of the tries at scoring answers %g have failed so far (scorer/failed_tries); the scorer's log says how",
        failed));
  }
  return warnings;
}

}  // namespace quartet

#include "orchestrator/loop/step_warnings.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/config/services.h"
#include "core/zero/optimizer/optimizer_options.h"

namespace quartet {
namespace {

// Beyond it a model is soon noise, where a step moves each parameter by about so much.
constexpr double kLargeLearningRate = 0.01;

}  // namespace

std::vector<std::string> ConfigurationWarnings(const RunConfig& config) {
  std::vector<std::string> warnings;
  const auto check = [&](const std::string& name, const TrainerConfig& trainer) {
    if (!IsScaleFree(trainer) || trainer.learning_rate() <= kLargeLearningRate) return;
    warnings.push_back(
        absl::StrFormat("%s.learning_rate is %g: each step moves each parameter by about so much; "
                        "rates that train language models are 1e-7 to 1e-3",
                        name, trainer.learning_rate()));
  };
  check("actor", config.actor());
  if (UsesCritic(config)) check("critic", config.critic());
  return warnings;
}

std::vector<std::string> StepWarnings::Of(const Metrics& metrics) {
  std::vector<std::string> warnings;
  equal_steps_ = metrics.Get("reward/std").value_or(1) == 0 ? equal_steps_ + 1 : 0;
  if (equal_steps_ >= kEqualSteps && !said_equal_) {
    said_equal_ = true;
    warnings.push_back(absl::StrFormat(
        "all rewards of the last %d steps were equal (%g): nothing can be learned from them. Is the reward what it "
        "should be (samples.jsonl), and can the model do the task at all?",
        kEqualSteps, metrics.Get("reward/mean").value_or(0)));
  }
  const double kl = metrics.Get("kl/mean").value_or(0);
  if (kl > kMostKl && !said_kl_) {
    said_kl_ = true;
    warnings.push_back(
        absl::StrFormat("the policy's KL from its reference is %.3g a token: its answers are hardly a "
                        "language any more (samples.jsonl). A lower actor.learning_rate or a higher "
                        "algorithm.kl.init_kl_coef holds it back",
                        kl));
  }
  return warnings;
}

}  // namespace quartet

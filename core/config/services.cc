#include "core/config/services.h"

namespace quartet {

std::vector<std::string> PpoServices(const RunConfig& config) {
  std::vector<std::string> services = kServiceNames;
  if (!UsesCritic(config)) std::erase(services, "critic_trainer");
  return services;
}

const TrainerConfig& TrainerOf(const RunConfig& config, std::string_view model) {
  return model == "critic" ? config.critic() : config.actor();
}

bool UsesCritic(const RunConfig& config) { return config.algorithm().advantage_estimator() == "gae"; }

bool HasGroupBaseline(const AlgorithmConfig& algorithm) {
  const std::string& estimator = algorithm.advantage_estimator();
  return estimator == "grpo" || estimator == "dr_grpo" || estimator == "reinforce_plus_plus_baseline";
}

bool ComparesAnswers(const AlgorithmConfig& algorithm) {
  return HasGroupBaseline(algorithm) || algorithm.advantage_estimator() == "rloo";
}

bool UsesReference(const RunConfig& config) { return config.algorithm().kl().init_kl_coef() > 0; }

}  // namespace quartet

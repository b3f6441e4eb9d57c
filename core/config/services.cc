#include "core/config/services.h"

#include "core/rl/estimators.h"

namespace quartet {

std::vector<std::string> PpoServices(const RunConfig& config) {
  std::vector<std::string> services = kServiceNames;
  if (!UsesCritic(config)) std::erase(services, "critic_trainer");
  return services;
}

const TrainerConfig& TrainerOf(const RunConfig& config, std::string_view model) {
  return model == "critic" ? config.critic() : config.actor();
}

bool UsesCritic(const RunConfig& config) {
  const AdvantageEstimator* const estimator = FindEstimator(config.algorithm().advantage_estimator());
  return estimator != nullptr && estimator->needs_critic;
}

bool UsesReference(const RunConfig& config) { return config.algorithm().kl().init_kl_coef() > 0; }

}  // namespace quartet

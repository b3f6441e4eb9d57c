#include "core/config/services.h"

namespace quartet {

std::vector<std::string> PpoServices(const RunConfig& config) {
  std::vector<std::string> services = kServiceNames;
  if (!UsesCritic(config)) std::erase(services, "critic_trainer");
  return services;
}

bool UsesCritic(const RunConfig& config) { return config.algorithm().advantage_estimator() == "gae"; }

bool UsesReference(const RunConfig& config) { return config.algorithm().kl().init_kl_coef() > 0; }

}  // namespace quartet

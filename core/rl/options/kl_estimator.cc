#include "core/rl/options/kl_estimator.h"

#include "core/rl/options/option_name.h"

namespace quartet {

absl::StatusOr<KlEstimator> ParseKlEstimator(std::string_view name) {
  return ParseOptionName<KlEstimator>("KL estimator", name,
                                      {{"k1", KlEstimator::kK1}, {"k2", KlEstimator::kK2}, {"k3", KlEstimator::kK3}});
}

absl::StatusOr<KlClamp> ParseKlClamp(std::string_view name) {
  return ParseOptionName<KlClamp>("KL clamp", name,
                                  {{"all", KlClamp::kAll}, {"k3", KlClamp::kK3Only}, {"none", KlClamp::kNone}});
}

bool ClampsKl(KlClamp clamp, KlEstimator estimator) {
  return clamp == KlClamp::kAll || (clamp == KlClamp::kK3Only && estimator == KlEstimator::kK3);
}

}  // namespace quartet

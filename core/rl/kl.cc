#include "core/rl/kl.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"

namespace quartet {
namespace {

constexpr double kMaxKl = 10;
constexpr double kMaxRelativeError = 0.2;

double Estimate(double d, KlEstimator estimator) {
  switch (estimator) {
    case KlEstimator::kK1:
      return d;
    case KlEstimator::kK2:
      return d * d / 2;
    case KlEstimator::kK3:
      return std::expm1(-d) + d;
  }
  return d;
}

}  // namespace

absl::StatusOr<KlEstimator> ParseKlEstimator(std::string_view name) {
  if (name == "k1") return KlEstimator::kK1;
  if (name == "k2") return KlEstimator::kK2;
  if (name == "k3") return KlEstimator::kK3;
  return absl::InvalidArgumentError(
      absl::StrCat("KL estimator \"", std::string(name), "\" is not known; allowed: k1, k2, k3"));
}

std::vector<float> EstimateKl(std::span<const float> log_probs, std::span<const float> reference_log_probs,
                              KlEstimator estimator) {
  QUARTET_CHECK(log_probs.size() == reference_log_probs.size());
  std::vector<float> kl(log_probs.size());
  for (size_t t = 0; t < kl.size(); ++t) {
    const double d = static_cast<double>(log_probs[t]) - static_cast<double>(reference_log_probs[t]);
    kl[t] = static_cast<float>(std::clamp(Estimate(d, estimator), -kMaxKl, kMaxKl));
  }
  return kl;
}

KlController::KlController(double coefficient, double target, double horizon)
    : coefficient_(coefficient), target_(target), horizon_(horizon) {
  QUARTET_CHECK(target <= 0 || horizon > 0);
}

void KlController::Update(double kl, int64_t sequences) {
  if (target_ <= 0) return;
  const double error = std::clamp(kl / target_ - 1, -kMaxRelativeError, kMaxRelativeError);
  coefficient_ *= 1 + error * static_cast<double>(sequences) / horizon_;
}

}  // namespace quartet

#include "core/rl/kl.h"

#include <algorithm>
#include <cmath>

#include "core/base/logging.h"
#include "core/rl/options/option_name.h"

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

template <typename T>
std::vector<T> EstimateKlOf(std::span<const T> log_probs, std::span<const T> reference_log_probs, KlEstimator estimator,
                            KlClamp clamp) {
  QUARTET_CHECK(log_probs.size() == reference_log_probs.size());
  const bool clamped = ClampsKl(clamp, estimator);
  std::vector<T> kl(log_probs.size());
  for (size_t t = 0; t < kl.size(); ++t) {
    const double d = static_cast<double>(log_probs[t]) - static_cast<double>(reference_log_probs[t]);
    const double value = Estimate(d, estimator);
    kl[t] = static_cast<T>(clamped ? std::clamp(value, -kMaxKl, kMaxKl) : value);
  }
  return kl;
}

template <typename T>
std::optional<double> MeanKlOf(std::span<const std::span<const T>> kl, KlMean mean) {
  double sum = 0;
  double count = 0;
  for (std::span<const T> sequence : kl) {
    if (sequence.empty()) continue;
    const double weight = mean == KlMean::kToken ? 1 : 1 / static_cast<double>(sequence.size());
    for (T value : sequence) sum += weight * static_cast<double>(value);
    count += weight * static_cast<double>(sequence.size());
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

}  // namespace

std::vector<float> EstimateKl(std::span<const float> log_probs, std::span<const float> reference_log_probs,
                              KlEstimator estimator, KlClamp clamp) {
  return EstimateKlOf(log_probs, reference_log_probs, estimator, clamp);
}

std::vector<double> EstimateKl(std::span<const double> log_probs, std::span<const double> reference_log_probs,
                               KlEstimator estimator, KlClamp clamp) {
  return EstimateKlOf(log_probs, reference_log_probs, estimator, clamp);
}

absl::StatusOr<KlMean> ParseKlMean(std::string_view name) {
  return ParseOptionName<KlMean>("KL mean", name, {{"token", KlMean::kToken}, {"sequence", KlMean::kSequence}});
}

std::optional<double> MeanKl(std::span<const std::span<const float>> kl, KlMean mean) { return MeanKlOf(kl, mean); }

std::optional<double> MeanKl(std::span<const std::span<const double>> kl, KlMean mean) { return MeanKlOf(kl, mean); }

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

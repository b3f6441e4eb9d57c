// KL to the reference, per token, and the controller of its coefficient. Formulas: docs/algorithms.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/rl/options/kl_estimator.h"

namespace quartet {

// One value a token. Both arrays have the same length.
std::vector<float> EstimateKl(std::span<const float> log_probs, std::span<const float> reference_log_probs,
                              KlEstimator estimator, KlClamp clamp = KlClamp::kAll);
std::vector<double> EstimateKl(std::span<const double> log_probs, std::span<const double> reference_log_probs,
                               KlEstimator estimator, KlClamp clamp = KlClamp::kAll);

// What the controller is given.
enum class KlMean {
  kToken,     // every token of the batch counts the same
  kSequence,  // every sequence with tokens counts the same; within it, every token: OpenRLHF, verl
};

// "token" or "sequence"; anything else is INVALID_ARGUMENT.
absl::StatusOr<KlMean> ParseKlMean(std::string_view name);

// Of the KL of each sequence of a rollout batch; sequences without tokens do not count. Nothing where no sequence has
// any.
std::optional<double> MeanKl(std::span<const std::span<const float>> kl, KlMean mean);
std::optional<double> MeanKl(std::span<const std::span<const double>> kl, KlMean mean);

// The coefficient of the KL penalty: fixed, or moved towards a target KL (Ziegler et al. 2019, section 2.2).
class KlController {
 public:
  // target <= 0: the coefficient stays as it is. `horizon`: sequences over which it adapts, greater than 0.
  KlController(double coefficient, double target, double horizon);

  double coefficient() const { return coefficient_; }
  // After a step of `sequences` sequences whose mean KL was `kl`:
  // beta <- beta (1 + clip(kl / target - 1, -0.2, 0.2) sequences / horizon).
  void Update(double kl, int64_t sequences);

 private:
  double coefficient_;
  double target_;
  double horizon_;
};

}  // namespace quartet

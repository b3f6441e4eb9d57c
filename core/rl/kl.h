// KL to the reference, per token, and the controller of its coefficient. Formulas: docs/algorithms.md.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

// With d = log_prob - reference_log_prob (Schulman, "Approximating KL divergence"):
enum class KlEstimator {
  kK1,  // d
  kK2,  // d^2 / 2
  kK3,  // exp(-d) - 1 + d
};

// "k1", "k2" or "k3"; anything else is INVALID_ARGUMENT.
absl::StatusOr<KlEstimator> ParseKlEstimator(std::string_view name);

// One value a token, clamped to [-10, 10]. Both arrays have the same length.
std::vector<float> EstimateKl(std::span<const float> log_probs, std::span<const float> reference_log_probs,
                              KlEstimator estimator);

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

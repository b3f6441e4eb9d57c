// How the KL of a token to the reference is estimated: core/rl/kl.h. Formulas: docs/algorithms.md.
#pragma once

#include <string_view>

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

// Which estimates are clamped to [-10, 10].
enum class KlClamp {
  kAll,     // k1, k2 and k3: OpenRLHF
  kK3Only,  // k1 and k2 as they are: verl
  kNone,    // TRL
};

// "all", "k3" or "none"; anything else is INVALID_ARGUMENT.
absl::StatusOr<KlClamp> ParseKlClamp(std::string_view name);
// Estimates of this estimator are clamped.
bool ClampsKl(KlClamp clamp, KlEstimator estimator);

}  // namespace quartet

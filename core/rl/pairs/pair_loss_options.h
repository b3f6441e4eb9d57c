// Which loss the policy is trained with on pairs of answers of which one is preferred. Without LibTorch, so that calls
// can be checked anywhere; the losses themselves are core/rl/pairs/pair_losses.h. Formulas: docs/algorithms.md.
#pragma once

#include "absl/status/status.h"

namespace quartet {

enum class PreferenceLossKind {
  kDpo,  // -(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h) (Rafailov et al. 2023; s: Mitchell 2023, cDPO)
  kIpo,  // (h - 1 / (2 beta))^2 (Azar et al. 2023)
};

struct PreferenceLossOptions {
  PreferenceLossKind kind = PreferenceLossKind::kDpo;
  double beta = 0.1;           // above 0
  double label_smoothing = 0;  // s: in [0, 0.5); 0 for kIpo
};

// INVALID_ARGUMENT for values out of their range, and for those that would have no effect with this kind.
absl::Status CheckPreferenceLossOptions(const PreferenceLossOptions& options);

}  // namespace quartet

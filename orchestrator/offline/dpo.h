// Direct preference optimization: the policy learns from pairs of answers, held near a frozen reference.
#pragma once

#include "absl/status/statusor.h"
#include "core/clients/service_clients.h"
#include "orchestrator/data/preference_pairs.h"
#include "orchestrator/offline/offline_loop.h"

namespace quartet {

// The loss is the mean over the pairs of each batch: Rafailov et al. 2023; with preference.loss "ipo" that of Azar et
// al. 2023, of log-probabilities' means over tokens. `held_out` may be null, and
// `scorer` where ReferenceIsBase.
absl::StatusOr<OfflineSummary> RunDpo(const OfflineRun& run, PreferencePairs& pairs, PreferencePairs* held_out,
                                      PolicyTrainerClient& policy_trainer, ScorerClient* scorer);

}  // namespace quartet

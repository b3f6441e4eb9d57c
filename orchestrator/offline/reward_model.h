// Training a reward model on pairs of answers, by the critic trainer.
#pragma once

#include "absl/status/statusor.h"
#include "core/clients/service_clients.h"
#include "orchestrator/data/preference_pairs.h"
#include "orchestrator/offline/offline_loop.h"

namespace quartet {

// The loss is the mean over the pairs of each batch of -log sigmoid(r_chosen - r_rejected - margin), r being the scalar
// head at a sequence's last token. `held_out` may be null.
absl::StatusOr<OfflineSummary> RunRewardModel(const OfflineRun& run, PreferencePairs& pairs, PreferencePairs* held_out,
                                              CriticTrainerClient& critic_trainer);

}  // namespace quartet

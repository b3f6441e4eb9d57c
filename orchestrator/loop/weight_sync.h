// Brings the policy's weights to the rollout.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "orchestrator/clients/service_clients.h"

namespace quartet {

// Publishes the policy's present weights as `version` and swaps them in at the rollout, which keeps what is in flight;
// returns the seconds in which it made no forwards. After an error the rollout goes on, without what it staged.
absl::StatusOr<double> SyncWeights(Services& services, uint64_t step, uint64_t version);

}  // namespace quartet

// Brings the policy's weights to the rollout.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/clients/service_clients.h"
#include "proto/weights.pb.h"

namespace quartet {

// Has the rollout take what the policy trainer has published as `manifest`, beside what it generates with, which it
// keeps in flight; returns the seconds in which it made no forwards. After an error it goes on, without what it staged.
absl::StatusOr<double> TakeWeights(RolloutClient& rollout, uint64_t step, const WeightManifest& manifest);

}  // namespace quartet

// The checks of a configuration that has its defaults, by subject: what fields allow beside others. What each allows by
// itself is its rule (core/field_rules/field_rules.h), which holds before.
//
// What has no effect in a combination is cleared or refused before (core/config/needs.h). Where a check finds that of a
// single value, never of a default: the resolved configuration must stay readable.
#pragma once

#include "absl/status/status.h"
#include "proto/run_config.pb.h"

namespace quartet {

absl::Status CheckData(const RunConfig& config);
absl::Status CheckEval(const RunConfig& config);
absl::Status CheckRollout(const RolloutConfig& rollout);

// `algorithm`, `reference` and `reward`.
absl::Status CheckAlgorithm(const RunConfig& config);
absl::Status CheckGroups(const RunConfig& config);
// Before defaults are filled in: what `eps_clip` decides cannot be told afterwards.
absl::Status CheckClipOverlap(const AlgorithmConfig& algorithm);
absl::Status CheckReference(const RunConfig& config);
absl::Status CheckReward(const RunConfig& config);

// `agent`, and what cannot be beside one.
absl::Status CheckAgent(const RunConfig& config);

// `actor`, `critic` and `train`.
absl::Status CheckTrainers(const RunConfig& config);
absl::Status CheckTrain(const RunConfig& config);
// That what PPO's steps generate can be cut into optimizer steps.
absl::Status CheckTrainBatches(const RunConfig& config);

// `services` and what depends on their devices, `cluster`, `placement`, `tls`.
absl::Status CheckServices(const RunConfig& config);
absl::Status CheckPlacements(const RunConfig& config);
absl::Status CheckDevices(const RunConfig& config);
absl::Status CheckTls(const TlsConfig& tls);

}  // namespace quartet

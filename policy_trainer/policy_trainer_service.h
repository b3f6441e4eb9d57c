// The policy trainer as a gRPC service (proto/policy_trainer.proto).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/service/ranks/rank_main.h"

namespace quartet {

// One rank of it; for RankMainOptions::create. Errors name the configuration's field or the model folder's file.
absl::StatusOr<std::unique_ptr<RankService>> CreatePolicyTrainer(const RunConfig& config, const RankContext& context,
                                                                 RankGroup& group);

}  // namespace quartet

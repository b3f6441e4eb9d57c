// The rollout's gRPC service (proto/rollout.proto) on one rank. LibTorch-free.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/rank/rank_context.h"
#include "core/service/ranks/group/rank_group.h"
#include "core/service/ranks/rank_main.h"
#include "proto/run_config.pb.h"

namespace quartet {

// For RankMainOptions::create. `config` is resolved; `context` and `group` outlive the service.
absl::StatusOr<std::unique_ptr<RankService>> CreateRolloutService(const RunConfig& config, const RankContext& context,
                                                                  RankGroup& group);

}  // namespace quartet

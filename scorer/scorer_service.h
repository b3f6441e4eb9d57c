// The scorer as a gRPC service (proto/scorer.proto).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/service/ranks/rank_main.h"

namespace quartet {

// One rank of it; for RankMainOptions::create. Errors name the configuration's field or the model folder's file.
// Without a reference and reward models nothing is loaded and LibTorch is never entered.
absl::StatusOr<std::unique_ptr<RankService>> CreateScorer(const RunConfig& config, const RankContext& context,
                                                          RankGroup& group);

}  // namespace quartet

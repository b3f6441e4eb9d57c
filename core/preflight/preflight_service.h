// A service that was started with --check: it has its ranks, groups and addresses, and no model.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/service/ranks/rank_main.h"

namespace quartet {

// For RankMainOptions::create_check, of any service.
absl::StatusOr<std::unique_ptr<RankService>> CreatePreflight(const RunConfig& config, const RankContext& context,
                                                             RankGroup& group);

}  // namespace quartet

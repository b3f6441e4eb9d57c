// What the gRPC services of trainers and scorer share. LibTorch-free.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/service/ranks/rank_group.h"

namespace quartet {

// FAILED_PRECONDITION, naming the leader, on every other rank.
absl::Status CheckLeader(const RankGroup& group, const std::string& call);

}  // namespace quartet

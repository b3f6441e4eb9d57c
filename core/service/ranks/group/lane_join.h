// What a rank says of itself as it joins, so that no two compute together that were started otherwise.
#pragma once

#include "absl/status/status.h"
#include "core/rank/rank_context.h"
#include "proto/rank.pb.h"

namespace quartet {

LaneJoin JoinOf(const RankContext& context);

// That a rank computes with what this one does: together they would be a model that nobody has asked for.
// FAILED_PRECONDITION names what differs.
absl::Status CheckIsAlike(const LaneJoin& join, const LaneJoin& own);

}  // namespace quartet

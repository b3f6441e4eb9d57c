// A rank's account of itself for GetInfo. LibTorch-free.
#pragma once

#include <cstdint>

#include "core/service/rank_context.h"
#include "core/zero/ledger.h"
#include "proto/common.pb.h"

namespace quartet {

// Rank, endpoint, process id, every ledger category and the process's peak resident set.
RankInfo DescribeRank(const RankContext& context, const Ledger& ledger);

}  // namespace quartet

// A rank's account of its memory: budgets from its place, and what it tells in GetInfo. LibTorch-free.
#pragma once

#include <cstdint>

#include "core/memory/ledger.h"
#include "core/rank/rank_context.h"
#include "proto/common.pb.h"

namespace quartet {

// Bounds `ledger` by the budgets of the service's placement.
void SetBudgets(const RankContext& context, Ledger* ledger);

// Rank, endpoint, process id, every category of the device tier, those of the host tier that ever held something, both
// tiers' totals, and the process's peak resident set.
RankInfo DescribeRank(const RankContext& context, const Ledger& ledger);

// By what a rank that computes on its CPU, in bf16, multiplies; the process's log says it once.
void DescribeCpuKernels(const RankContext& context, RankInfo* info);

}  // namespace quartet

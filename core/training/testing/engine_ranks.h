// For tests: ranks of an engine inside one process.
#pragma once

#include <functional>
#include <string>

#include "core/rank/rank_context.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Calls `body` for every rank of a group of `size` that can join process groups, each on a thread of its own, and joins
// them. Fails the test where `body` throws.
void RunEngineRanks(int size, const std::function<void(const RankContext&)>& body);

// A resolved configuration in fp32 whose actor, critic and reference are `folder`, at the given ZeRO stage.
RunConfig TestConfig(const std::string& folder, int zero_stage);

// A folder of this test's own that does not exist yet.
std::string NewTestFolder(const std::string& name);

}  // namespace quartet

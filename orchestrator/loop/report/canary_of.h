// The few sequences of a step's batch by which a service is told from the one that replaces it.
#pragma once

#include <vector>

#include "core/tokenizer/tokenizer.h"
#include "orchestrator/loop/experience/experience.h"
#include "orchestrator/upgrades/canary.h"
#include "proto/run_config.pb.h"

namespace quartet {

// kCanarySequences of the batch at most, evenly over it; of an experience in several sequences the last.
Canary CanaryOf(const std::vector<Experience>& batch, const RewardConfig& reward, const Tokenizer& tokenizer);

}  // namespace quartet

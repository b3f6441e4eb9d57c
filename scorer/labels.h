// What sources of rewards read of a row, before there is any answer. gRPC-free and LibTorch-free.
#pragma once

#include <string>

#include "proto/run_config.pb.h"

namespace quartet {

// Whether the source is for prompts from `prompt_source` (reward.source.only).
bool IsFor(const RewardSource& source, const std::string& prompt_source);

}  // namespace quartet

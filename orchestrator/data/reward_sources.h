// What sources of the reward read and say.
#pragma once

#include "proto/run_config.pb.h"

namespace quartet {

// Whether the source compares the answer with the label (or runs the label's tests), so that its value is 1 exactly
// where the answer is right.
bool Verifies(const RewardSource& source);

// Whether any source does, and so needs labels.
bool NeedsLabels(const RewardConfig& reward);

// Whether any source reads labels that are lists or objects, as JSON: tests of code, fields of JSON, servers, commands.
bool ReadsJsonLabels(const RewardConfig& reward);

// Whether any source is a server or a command, which are told prompts as well.
bool ReadsPrompts(const RewardConfig& reward);

}  // namespace quartet

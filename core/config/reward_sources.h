// What the sources of rewards read and mean. Of resolved configurations. LibTorch-free and gRPC-free.
#pragma once

#include <string>
#include <vector>

#include "proto/run_config.pb.h"

namespace quartet {

// The names that reward.source.rule may have.
const std::vector<std::string>& RewardRules();

// Whether a source cannot do without a label.
bool NeedsLabel(const RewardSource& source);

// Whether a value of 1 or more says that the answer is right, and less that it is not: rules that compare with the
// label, and code.
bool JudgesAnswers(const RewardSource& source);

// Whether a source reads the prompt's text, and that of prompt and answer as the model has read them (ScoreItem.prompt
// and query).
bool ReadsQueries(const RewardConfig& reward);

}  // namespace quartet

// What sources of the reward read and say.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Whether the source compares the answer with the label (or runs the label's tests), so that its value is 1 exactly
// where the answer is right.
bool Verifies(const RewardSource& source);

// Whether any source that is for all prompts does, so that each row needs a label.
bool NeedsLabels(const RewardConfig& reward);

// Whether labels of prompts from `prompt_source` may be lists or objects: a source that is for them reads such as JSON
// (tests of code, fields of JSON, servers, commands), or none of these compares with labels.
bool TakesJsonLabels(const RewardConfig& reward, const std::string& prompt_source);

// That each name of reward.source.only is one of `sources`, where prompts are from. INVALID_ARGUMENT names the field.
absl::Status CheckOnly(const RewardConfig& reward, const std::set<std::string>& sources);

// That no reward.source.reasoning_delimiter has a special token of the tokenizer's: answers are read without those, and
// none would ever have it. INVALID_ARGUMENT names the field and the token.
absl::Status CheckReasoningDelimiters(const RewardConfig& reward, const Tokenizer& tokenizer);

// Whether any source is a server or a command, which are told prompts as well.
bool ReadsPrompts(const RewardConfig& reward);

}  // namespace quartet

// What the console shows of the first prompt or example, so that a wrong key, template or end token is seen at once.
#pragma once

#include <string>

#include "core/tokenizer/tokenizer.h"
#include "orchestrator/data/prompts.h"
#include "proto/experience.pb.h"

namespace quartet {

// A few lines: how many tokens, then their text as the model reads it, special tokens included and control characters
// escaped, and their ids; of an example a pair for each part that is trained on or is not. What is long is shortened in
// the middle.
std::string DescribePrompt(const PromptRecord& prompt, const Tokenizer& tokenizer);
std::string DescribeExample(const TokenSequence& example, const Tokenizer& tokenizer);
// Both examples of a pair.
std::string DescribePair(const TokenSequence& chosen, const TokenSequence& rejected, const Tokenizer& tokenizer);

}  // namespace quartet

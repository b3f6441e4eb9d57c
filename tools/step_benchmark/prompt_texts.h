// Prompts of a fixed length.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {

// `count` texts that begin with different numbers and have exactly `tokens` tokens each, with what the tokenizer puts
// before a text. INVALID_ARGUMENT names `tokens` where the words here, of which each must be of some tokens, do not
// make such a text.
absl::StatusOr<std::vector<std::string>> PromptTexts(const Tokenizer& tokenizer, int count, int tokens);

}  // namespace quartet

// Answers of the rollout: how they are asked for, and what the scorer is told of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/data/prompts.h"
#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"
#include "proto/run_config.pb.h"
#include "proto/scorer.pb.h"

namespace quartet {

// What rollout.* says of every answer: its lengths and end tokens. How it is drawn, and how many, is left to the
// caller.
SamplingParams AnswerLimits(const RolloutConfig& rollout);

// The text of the action tokens, without special tokens.
std::string DecodeResponse(const TokenSequence& tokens, const Tokenizer& tokenizer);

// The text of each action token, special tokens included.
std::vector<std::string> ActionTexts(const TokenSequence& tokens, const Tokenizer& tokenizer);

// `index`: of the item in its call.
ScoreItem MakeScoreItem(uint64_t index, const GeneratedSequence& answer, const PromptRecord& prompt,
                        const RewardConfig& reward, const Tokenizer& tokenizer);

// What the scorer says is wrong with one of the items that it was sent, "sequence INDEX, ...", with the place of its
// prompt's row in front: labels that take a sandbox to read are found there alone. Other errors are as they are.
absl::Status NameRow(const absl::Status& status, const std::function<const PromptRecord&(uint64_t index)>& prompt_of);

}  // namespace quartet

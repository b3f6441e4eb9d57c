// Answers of the rollout: how they are asked for, and what the scorer is told of them.
#pragma once

#include <string>

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

// `index`: of the item in its call.
ScoreItem MakeScoreItem(uint64_t index, const GeneratedSequence& answer, const PromptRecord& prompt,
                        const RewardConfig& reward, const Tokenizer& tokenizer);

}  // namespace quartet

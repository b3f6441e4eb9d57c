// Answers to prompts: how they are asked for, what is known of one, and what the scorer is told of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/rewards/reward.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/data/prompts.h"
#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"
#include "proto/run_config.pb.h"
#include "proto/scorer.pb.h"

namespace quartet {

// An answer to a prompt; where an agent asks, its whole episode.
struct PromptAnswer {
  uint64_t prompt = 0;  // of those that were asked
  uint64_t sample = 0;
  std::string error;  // why there is none (agent.on_error "drop"); then what follows is not set
  // One; of an episode as many as it has branches. Arrays have one entry per action token of all of them, end to end.
  std::vector<TokenSequence> sequences;
  // Of the whole distribution; and of what was drawn from, after penalties and truncation.
  std::vector<float> log_probs;
  std::vector<float> sampled_log_probs;
  std::string response;         // decoded, without special tokens; of an episode its last answer
  bool truncated = false;       // that one, by a limit
  bool overlong = false;        // one of the run's, not of an agent's request
  std::string conversation;     // of an episode: the messages of the last sequence, with the last answer, a JSON list
  std::optional<Reward> agent;  // of an episode: what the agent says, if anything

  int64_t action_tokens() const { return static_cast<int64_t>(log_probs.size()); }
};

// What rollout.* says of every answer: its lengths and end tokens. How it is drawn, and how many, is left to the
// caller.
SamplingParams AnswerLimits(const RolloutConfig& rollout);

// The text of the action tokens, without special tokens.
std::string DecodeResponse(const TokenSequence& tokens, const Tokenizer& tokenizer);

// The text of each action token, special tokens included.
std::vector<std::string> ActionTexts(const TokenSequence& tokens, const Tokenizer& tokenizer);

// What of an answer sources judge: its last sequence.
struct JudgedAnswer {
  const TokenSequence& tokens;
  const std::string& response;  // with which they end
  bool truncated;
  const std::string& conversation;  // "": there is none
};
// `index`: of the item in its call.
ScoreItem MakeScoreItem(uint64_t index, const JudgedAnswer& answer, const PromptRecord& prompt,
                        const RewardConfig& reward, const Tokenizer& tokenizer);

// The name of what agents say among the sources of rewards.
inline constexpr char kAgentSource[] = "agent";
// Adds what an agent says of its episode to the reply on the sources' rewards; their gates, which are in it, multiply
// that too. It is as if it were the value of one more source, kAgentSource. OUT_OF_RANGE: the sum is beyond fp32.
absl::Status AddAgentReward(const RewardConfig& reward, const Reward& agent, ScoreReply* reply);

// What the scorer says is wrong with one of the items that it was sent, "sequence INDEX, ...", with the place of its
// prompt's row in front: labels that take a sandbox to read are found there alone. Other errors are as they are.
absl::Status NameRow(const absl::Status& status, const std::function<const PromptRecord&(uint64_t index)>& prompt_of);

}  // namespace quartet

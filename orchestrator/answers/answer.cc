#include "orchestrator/answers/answer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/rewards/labels/labels.h"
#include "core/rl/rewards.h"
#include "core/tokenizer/token_texts.h"
#include "orchestrator/data/reward_sources.h"

namespace quartet {

SamplingParams AnswerLimits(const RolloutConfig& rollout) {
  SamplingParams sampling;
  sampling.set_max_new_tokens(rollout.generate_max_len());
  sampling.set_min_tokens(rollout.min_tokens());
  *sampling.mutable_stop_token_ids() = rollout.stop_token_ids();
  return sampling;
}

std::string DecodeResponse(const TokenSequence& tokens, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int i = 0; i < tokens.ids_size(); ++i) {
    if (tokens.action_mask(i)) ids.push_back(tokens.ids(i));
  }
  return tokenizer.Decode(ids, /*skip_special_tokens=*/true);
}

std::vector<std::string> ActionTexts(const TokenSequence& tokens, const Tokenizer& tokenizer) {
  const std::vector<int32_t> ids(tokens.ids().begin(), tokens.ids().end());
  const auto first = std::ranges::find(tokens.action_mask(), true) - tokens.action_mask().begin();
  std::vector<std::string> texts = TokenTexts(tokenizer, ids, first), of_actions;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (tokens.action_mask(static_cast<int>(first + i))) of_actions.push_back(std::move(texts[i]));
  }
  return of_actions;
}

ScoreItem MakeScoreItem(uint64_t index, const JudgedAnswer& answer, const PromptRecord& prompt,
                        const RewardConfig& reward, const Tokenizer& tokenizer) {
  const TokenSequence& tokens = answer.tokens;
  ScoreItem item;
  *item.mutable_tokens() = tokens;
  item.mutable_tokens()->set_index(index);
  item.set_response(answer.response);
  item.set_label(prompt.label);
  item.set_source(prompt.source);
  item.set_truncated(answer.truncated);
  if (!ReadsPrompts(reward)) return item;
  item.set_prompt(prompt.text);
  item.set_row(prompt.row);
  item.set_messages(answer.conversation);
  if (GivesTokenRewards(reward)) {
    for (std::string& text : ActionTexts(tokens, tokenizer)) item.add_token_texts(std::move(text));
  }
  item.set_query(tokenizer.Decode({tokens.ids().begin(), tokens.ids().end()}, /*skip_special_tokens=*/false));
  return item;
}

absl::Status AddAgentReward(const RewardConfig& reward, const Reward& agent, ScoreReply* reply) {
  const double score = agent.score.value_or(agent.value);
  double gates = 1, score_gates = 1;
  for (const RewardSource& source : reward.source()) {
    const auto part = reply->parts().find(source.name());
    if (!source.gate() || part == reply->parts().end()) continue;
    const auto own_score = reply->scores().find(source.name());
    gates *= part->second;
    score_gates *= own_score == reply->scores().end() ? part->second : own_score->second;
  }
  reply->set_reward(static_cast<float>(AddRewards(std::array<double, 2>{reply->reward(), gates * agent.value})));
  reply->set_score(static_cast<float>(AddRewards(std::array<double, 2>{reply->score(), score_gates * score})));
  if (!std::isfinite(reply->reward()) || !std::isfinite(reply->score())) {
    return absl::OutOfRangeError(absl::StrCat("the agent's reward ", agent.value, " (score ", score,
                                              ") and that of the sources add up to what is beyond fp32"));
  }
  (*reply->mutable_parts())[kAgentSource] = agent.value;
  if (agent.score.has_value()) (*reply->mutable_scores())[kAgentSource] = *agent.score;
  for (const auto& [name, value] : agent.extra_logs) {
    (*reply->mutable_extra_logs())[absl::StrCat(kAgentSource, "/", name)] = value;
  }
  return absl::OkStatus();
}

absl::Status NameRow(const absl::Status& status, const std::function<const PromptRecord&(uint64_t index)>& prompt_of) {
  constexpr std::string_view kSequence = "sequence ";
  const std::string_view message(status.message().data(), status.message().size());
  const size_t at = message.find(kSequence);
  if (at == std::string_view::npos) return status;
  const size_t begin = at + kSequence.size(), end = message.find_first_not_of("0123456789", begin);
  uint64_t index = 0;
  if (end == std::string_view::npos || message[end] != ',' ||
      !absl::SimpleAtoi(std::string(message.substr(begin, end - begin)), &index)) {
    return status;
  }
  return Prefixed(prompt_of(index).place, status);
}

}  // namespace quartet

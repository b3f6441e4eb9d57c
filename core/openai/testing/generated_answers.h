// Replies of a rollout, and the events that are made of them, for tests.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/openai/openai_response.h"
#include "gtest/gtest.h"
#include "proto/rollout.pb.h"

namespace quartet {

inline const OpenAiAnswerOptions& Options() {
  static const auto* options =
      new OpenAiAnswerOptions{.id = "abc", .created = 1700000000, .policy_version = 3, .end_token_ids = {0}};
  return *options;
}

struct Token {
  int32_t id;
  float log_prob;
  std::vector<std::pair<int32_t, float>> alternatives;
};

inline void Describe(const std::vector<std::pair<int32_t, float>>& alternatives, TokenAlternatives* out) {
  for (const auto& [id, log_prob] : alternatives) {
    out->add_ids(id);
    out->add_log_probs(log_prob);
  }
}

inline GenerateReply TokensReply(uint64_t prompt, int32_t sample, const Token& token) {
  GenerateReply reply;
  GeneratedTokens& tokens = *reply.mutable_tokens();
  tokens.set_prompt_index(prompt);
  tokens.set_sample(sample);
  tokens.add_ids(token.id);
  tokens.add_log_probs(token.log_prob);
  if (!token.alternatives.empty()) Describe(token.alternatives, tokens.add_alternatives());
  return reply;
}

inline GenerateReply SequenceReply(uint64_t prompt, int32_t sample, const std::vector<int32_t>& prompt_ids,
                                   const std::vector<Token>& answer, GeneratedSequence::FinishReason reason,
                                   const std::string& stop_string = "") {
  GenerateReply reply;
  GeneratedSequence& sequence = *reply.mutable_sequence();
  sequence.set_prompt_index(prompt);
  sequence.set_sample(sample);
  sequence.mutable_tokens()->mutable_ids()->Add(prompt_ids.begin(), prompt_ids.end());
  for (const Token& token : answer) {
    sequence.mutable_tokens()->add_ids(token.id);
    sequence.add_log_probs(token.log_prob);
    if (!token.alternatives.empty()) Describe(token.alternatives, sequence.add_alternatives());
  }
  sequence.set_finish_reason(reason);
  sequence.set_stop_string(stop_string);
  return reply;
}

// The data of server-sent events; "[DONE]" as a string.
inline std::vector<nlohmann::json> EventsOf(const std::string& text) {
  std::vector<nlohmann::json> events;
  for (const absl::string_view part : absl::StrSplit(text, "\n\n", absl::SkipEmpty())) {
    EXPECT_TRUE(absl::StartsWith(part, "data: ")) << part;
    const std::string data(part.substr(6));
    events.push_back(data == "[DONE]" ? nlohmann::json(data) : nlohmann::json::parse(data));
  }
  return events;
}

}  // namespace quartet

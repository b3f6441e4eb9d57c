// Writes what the rollout answers as OpenAI's interface has it, whole or as server-sent events. No sockets.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/generation/answer_text.h"
#include "core/openai/message_reader.h"
#include "core/openai/openai_request.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/rollout.pb.h"

namespace quartet {

struct OpenAiAnswerOptions {
  std::string id;               // without the prefix that says what it is
  int64_t created = 0;          // seconds since 1970
  uint64_t policy_version = 0;  // in use when the request begins
  // That end an answer, beside the request's own; they have no text.
  std::set<int32_t> end_token_ids;
  bool keeps_messages = false;  // a stream, too, has its Message at the end
};

// The answer to one request. Prompts x n choices; that of sample s of prompt p has the index p * n + s. One thread.
class OpenAiAnswer {
 public:
  // `model` outlives this.
  OpenAiAnswer(OpenAiRequest request, const ServedModel& model, const OpenAiAnswerOptions& options);

  // ---- A stream: the events to send, each as "data: {...}\n\n"; maybe none.
  std::string Begin();
  std::string Take(const GenerateReply& reply);
  // After everything has come.
  std::string End();
  // In place of what is left.
  static std::string Failure(const absl::Status& status);

  // ---- Whole: every reply goes through Take, whose result is not used; then this is the body.
  std::string Whole();

  // Of a chat whose replies have all come: the message that choice `index` is.
  nlohmann::ordered_json Message(size_t index) const;

  // That texts of whole answers and log-probabilities have taken as JSON so far, about.
  int64_t json_bytes() const { return json_bytes_; }

 private:
  struct Choice {
    AnswerText text;
    MessageReader message;
    std::optional<int32_t> last_token;  // of prompt and answer so far
    MessagePart told;                   // of what is kept: not of a stream, but for keeps_messages
    nlohmann::ordered_json logprobs;    // of tokens that are not told yet
    nlohmann::ordered_json prompt_logprobs;
    bool begun = false;  // a reply has come
    int64_t calls_told = 0;
    int64_t echoed = 0;  // characters of the prompt's text before the answer's
    std::string finish_reason;
    nlohmann::ordered_json stop_reason;
  };

  // `count` ids; `alternatives` may be empty.
  void ReadTokens(Choice* choice, const int32_t* ids, const float* log_probs, int count,
                  const google::protobuf::RepeatedPtrField<TokenAlternatives>& alternatives, std::string* text);
  // A token of a completion at character `offset` of its text; `log_prob` is null where there is none.
  void AddLogprobs(Choice* choice, int32_t id, const float* log_prob, const TokenAlternatives* alternatives,
                   int64_t offset);
  void AddChatLogprobs(Choice* choice, int32_t id, float log_prob, const TokenAlternatives* alternatives);
  // The text that an echo begins with; `reply` is the choice's first, a GeneratedTokens or a GeneratedSequence.
  template <typename Reply>
  std::string Echo(Choice* choice, const Reply& reply);
  // What an echo tells of the prompt's tokens.
  void AddPromptLogprobs(Choice* choice, const google::protobuf::RepeatedField<int32_t>& ids,
                         const google::protobuf::RepeatedField<float>& log_probs,
                         const google::protobuf::RepeatedPtrField<TokenAlternatives>& alternatives);
  nlohmann::ordered_json TakeLogprobs(Choice* choice) const;
  // The rest of the text.
  std::string Finish(Choice* choice, const GeneratedSequence& sequence);
  std::string TokenText(const std::optional<int32_t>& last_token, int32_t id) const;
  nlohmann::ordered_json PromptLogprobs(const GeneratedSequence& sequence);
  // That made what is told.
  void TellVersion(uint64_t version);
  nlohmann::ordered_json Frame(const char* completion, const char* chat) const;
  nlohmann::ordered_json Usage() const;
  std::string Event(nlohmann::ordered_json choice) const;
  // A part of choice `index`'s answer.
  std::string Part(int index, Choice* choice, const MessagePart& part, bool last) const;

  const OpenAiRequest request_;
  const ServedModel& model_;
  const OpenAiAnswerOptions options_;
  std::vector<Choice> choices_;
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  int64_t json_bytes_ = 0;
  std::optional<uint64_t> first_version_, last_version_;  // that made what has been told
};

}  // namespace quartet

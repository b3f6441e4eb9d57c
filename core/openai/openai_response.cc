#include "core/openai/openai_response.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/errors/shown.h"
#include "core/generation/stop_strings.h"
#include "core/openai/api_error.h"

namespace quartet {
namespace {

using nlohmann::ordered_json;

constexpr char kReplacement[] = "\xEF\xBF\xBD";
constexpr float kLeastLogprob = -9999;  // JSON has no infinity
// Of an object with a token and its log-probability.
constexpr int64_t kLogprobBytes = 300;

std::string DataEvent(absl::string_view data) { return absl::StrCat("data: ", data, "\n\n"); }

// The text as bytes; null where they cannot be known from it.
ordered_json BytesOf(const std::string& text) {
  if (text.find(kReplacement) != std::string::npos) return nullptr;
  ordered_json bytes = ordered_json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

ordered_json ChatLogprob(const std::string& text, float log_prob) {
  return {{"token", text}, {"logprob", std::max(log_prob, kLeastLogprob)}, {"bytes", BytesOf(text)}};
}

const char* FinishReason(GeneratedSequence::FinishReason reason) {
  switch (reason) {
    case GeneratedSequence::STOP:
      return "stop";
    case GeneratedSequence::LENGTH:
      return "length";
    default:
      return "abort";
  }
}

}  // namespace

OpenAiAnswer::OpenAiAnswer(OpenAiRequest request, const ServedModel& model, const OpenAiAnswerOptions& options)
    : request_(std::move(request)), model_(model), options_(options) {
  const SamplingParams& sampling = request_.header.sampling();
  AnswerTextOptions text;
  if (!sampling.stop().empty()) {
    text.stop = std::make_shared<const StopStrings>(std::vector(sampling.stop().begin(), sampling.stop().end()));
  }
  text.min_tokens = sampling.min_tokens();
  text.includes_stop = request_.includes_stop;
  if (!text.includes_stop) {
    text.silent = options_.end_token_ids;
    text.silent.insert(sampling.stop_token_ids().begin(), sampling.stop_token_ids().end());
  }
  text.marks = request_.form.SpecialMarks(*model_.tokenizer);
  const auto shared = std::make_shared<const AnswerTextOptions>(std::move(text));
  for (const Prompt& prompt : request_.prompts) {
    const std::vector<int32_t> ids(prompt.ids().begin(), prompt.ids().end());
    prompt_tokens_ += prompt.ids_size();
    const AnswerText behind_prompt(*model_.tokenizer, ids, shared);
    for (int32_t sample = 0; sample < sampling.n_samples(); ++sample) {
      choices_.push_back(
          {.text = behind_prompt,
           .message = MessageReader(request_.form, *model_.tokenizer, absl::StrCat(options_.id, "/", choices_.size())),
           .last_token = ids.back()});
    }
  }
}

std::string OpenAiAnswer::Begin() {
  std::string events;
  if (!request_.chat) return events;
  for (int index = 0; index < static_cast<int>(choices_.size()); ++index) {
    events += Event({{"index", index},
                     {"delta", {{"role", "assistant"}, {"content", ""}}},
                     {"logprobs", nullptr},
                     {"finish_reason", nullptr}});
  }
  return events;
}

std::string OpenAiAnswer::Take(const GenerateReply& reply) {
  const bool is_end = reply.has_sequence();
  const auto prompt = static_cast<int64_t>(is_end ? reply.sequence().prompt_index() : reply.tokens().prompt_index());
  const int32_t sample = is_end ? reply.sequence().sample() : reply.tokens().sample();
  const auto index = static_cast<int>(prompt * request_.header.sampling().n_samples() + sample);
  Choice& choice = choices_.at(index);
  std::string text;
  if (!choice.begun) text = is_end ? Echo(&choice, reply.sequence()) : Echo(&choice, reply.tokens());
  choice.begun = true;
  if (!is_end) {
    const GeneratedTokens& tokens = reply.tokens();
    if (tokens.has_policy_version()) TellVersion(tokens.policy_version());
    ReadTokens(&choice, tokens.ids().data(), tokens.log_probs().data(), tokens.ids_size(), tokens.alternatives(),
               &text);
    MessagePart part = choice.message.Read(text);
    // What is still held back is told later; a token's log-probability at once.
    std::string events = part.empty() && choice.logprobs.is_null() ? "" : Part(index, &choice, part, /*last=*/false);
    if (options_.keeps_messages) choice.told.Add(std::move(part));
    return events;
  }
  const GeneratedSequence& sequence = reply.sequence();
  for (const uint64_t version : sequence.policy_versions()) TellVersion(version);
  if (!request_.stream) {
    const int count = sequence.log_probs_size();
    const int32_t* ids = sequence.tokens().ids().data() + (sequence.tokens().ids_size() - count);
    ReadTokens(&choice, ids, sequence.log_probs().data(), count, sequence.alternatives(), &text);
  }
  if (request_.prompt_logprobs.has_value()) choice.prompt_logprobs = PromptLogprobs(sequence);
  text += Finish(&choice, sequence);
  MessagePart part = choice.message.Read(text);
  part.Add(choice.message.Finish(/*ended=*/sequence.finish_reason() == GeneratedSequence::STOP));
  if (choice.message.has_calls() && choice.finish_reason == "stop") choice.finish_reason = "tool_calls";
  std::string events = request_.stream ? Part(index, &choice, part, /*last=*/true) : "";
  if (!request_.stream || options_.keeps_messages) {
    choice.told.Add(std::move(part));
    json_bytes_ += choice.told.bytes();
  }
  return events;
}

std::string OpenAiAnswer::End() {
  std::string events;
  if (request_.include_usage) {
    ordered_json frame = Frame("text_completion", "chat.completion.chunk");
    frame["choices"] = ordered_json::array();
    frame["usage"] = Usage();
    events += DataEvent(OneLineJson(frame));
  }
  return events + DataEvent("[DONE]");
}

std::string OpenAiAnswer::Failure(const absl::Status& status) {
  return DataEvent(ErrorBody(status)) + DataEvent("[DONE]");
}

std::string OpenAiAnswer::Whole() {
  ordered_json frame = Frame("text_completion", "chat.completion");
  frame["choices"] = ordered_json::array();
  for (size_t index = 0; index < choices_.size(); ++index) {
    Choice& choice = choices_[index];
    ordered_json out = {{"index", index}};
    if (request_.chat) {
      out["message"] = Message(index);
    } else {
      out["text"] = choice.told.content;
    }
    out["logprobs"] = TakeLogprobs(&choice);
    out["finish_reason"] = choice.finish_reason;
    out["stop_reason"] = choice.stop_reason;
    if (request_.prompt_logprobs.has_value() && !request_.chat) out["prompt_logprobs"] = choice.prompt_logprobs;
    frame["choices"].push_back(std::move(out));
  }
  if (request_.prompt_logprobs.has_value() && request_.chat) frame["prompt_logprobs"] = choices_[0].prompt_logprobs;
  frame["usage"] = Usage();
  return OneLineJson(frame);
}

ordered_json OpenAiAnswer::Message(size_t index) const {
  const MessagePart& told = choices_[index].told;
  ordered_json message = {{"role", "assistant"}, {"content", told.content}, {"refusal", nullptr}};
  if (told.content.empty() && !told.empty()) message["content"] = nullptr;
  if (!told.reasoning.empty()) message["reasoning_content"] = told.reasoning;
  if (!told.calls.empty()) message["tool_calls"] = told.calls;
  return message;
}

void OpenAiAnswer::ReadTokens(Choice* choice, const int32_t* ids, const float* log_probs, int count,
                              const google::protobuf::RepeatedPtrField<TokenAlternatives>& alternatives,
                              std::string* text) {
  for (int i = 0; i < count; ++i) {
    const int64_t offset = choice->echoed + choice->text.characters();
    *text += choice->text.Read(ids[i]);
    const TokenAlternatives* likeliest = alternatives.empty() ? nullptr : &alternatives.Get(i);
    if (request_.logprobs && request_.chat) {
      AddChatLogprobs(choice, ids[i], log_probs[i], likeliest);
    } else if (request_.logprobs) {
      AddLogprobs(choice, ids[i], &log_probs[i], likeliest, offset);
    }
    choice->last_token = ids[i];
  }
  completion_tokens_ += count;
}

// As a token reads after the one before it: many decoders drop a space at a text's beginning. Special tokens by their
// names.
std::string OpenAiAnswer::TokenText(const std::optional<int32_t>& last_token, int32_t id) const {
  if (last_token.has_value()) {
    const std::string before = model_.tokenizer->DecodeUncleaned({*last_token}, /*skip_special_tokens=*/false);
    const std::string both = model_.tokenizer->DecodeUncleaned({*last_token, id}, /*skip_special_tokens=*/false);
    if (both.starts_with(before)) return both.substr(before.size());
  }
  return model_.tokenizer->DecodeUncleaned({id}, /*skip_special_tokens=*/false);
}

void OpenAiAnswer::AddChatLogprobs(Choice* choice, int32_t id, float log_prob, const TokenAlternatives* alternatives) {
  ordered_json entry = ChatLogprob(TokenText(choice->last_token, id), log_prob);
  entry["top_logprobs"] = ordered_json::array();
  const int count = alternatives == nullptr ? 0 : alternatives->ids_size();
  for (int i = 0; i < count; ++i) {
    entry["top_logprobs"].push_back(
        ChatLogprob(TokenText(choice->last_token, alternatives->ids(i)), alternatives->log_probs(i)));
  }
  json_bytes_ += (1 + count) * kLogprobBytes;
  ordered_json& logprobs = choice->logprobs;
  if (logprobs.is_null()) logprobs = {{"content", ordered_json::array()}, {"refusal", nullptr}};
  logprobs["content"].push_back(std::move(entry));
}

void OpenAiAnswer::AddLogprobs(Choice* choice, int32_t id, const float* log_prob, const TokenAlternatives* alternatives,
                               int64_t offset) {
  const std::string text = TokenText(choice->last_token, id);
  ordered_json& logprobs = choice->logprobs;
  if (logprobs.is_null()) {
    for (const char* list : {"text_offset", "token_logprobs", "tokens", "top_logprobs"}) {
      logprobs[list] = ordered_json::array();
    }
  }
  logprobs["text_offset"].push_back(offset);
  logprobs["tokens"].push_back(text);
  json_bytes_ += kLogprobBytes;
  if (log_prob == nullptr) {
    logprobs["token_logprobs"].push_back(nullptr);
    logprobs["top_logprobs"].push_back(nullptr);
    return;
  }
  ordered_json top = ordered_json::object();
  // Of a prompt more may be told elsewhere.
  const int count =
      alternatives == nullptr ? 0 : std::min(alternatives->ids_size(), request_.header.sampling().logprobs());
  for (int i = 0; i < count; ++i) {
    top.emplace(TokenText(choice->last_token, alternatives->ids(i)),
                std::max(alternatives->log_probs(i), kLeastLogprob));
  }
  json_bytes_ += count * kLogprobBytes;
  top.emplace(text, std::max(*log_prob, kLeastLogprob));
  logprobs["token_logprobs"].push_back(std::max(*log_prob, kLeastLogprob));
  logprobs["top_logprobs"].push_back(std::move(top));
}

// vLLM's: of each token but the first an object of ids. What rank a token has that is not among the likeliest is not
// known.
ordered_json OpenAiAnswer::PromptLogprobs(const GeneratedSequence& sequence) {
  const auto& ids = request_.prompts[sequence.prompt_index()].ids();
  ordered_json told = ordered_json::array({nullptr});
  for (int i = 0; i < sequence.prompt_log_probs_size(); ++i) {
    ordered_json entry = ordered_json::object();
    const auto add = [&](int32_t id, float log_prob, ordered_json rank) {
      json_bytes_ += kLogprobBytes;
      entry[absl::StrCat(id)] = {{"logprob", std::max(log_prob, kLeastLogprob)},
                                 {"rank", std::move(rank)},
                                 {"decoded_token", TokenText(ids[i], id)}};
    };
    add(ids[i + 1], sequence.prompt_log_probs(i), nullptr);
    const int count = i < sequence.prompt_alternatives_size() ? sequence.prompt_alternatives(i).ids_size() : 0;
    for (int a = 0; a < std::min(count, *request_.prompt_logprobs); ++a) {
      const TokenAlternatives& likeliest = sequence.prompt_alternatives(i);
      add(likeliest.ids(a), likeliest.log_probs(a), a + 1);
    }
    told.push_back(std::move(entry));
  }
  return told;
}

template <typename Reply>
std::string OpenAiAnswer::Echo(Choice* choice, const Reply& reply) {
  const bool tells_prompt = request_.prompt_logprobs.has_value() || (request_.logprobs && !request_.echoes.empty());
  if (tells_prompt && reply.has_prompt_policy_version()) TellVersion(reply.prompt_policy_version());
  if (request_.echoes.empty()) return "";
  const std::string& text = request_.echoes[reply.prompt_index()];
  choice->echoed = CountCharacters(text);
  if (request_.logprobs) {
    AddPromptLogprobs(choice, request_.prompts[reply.prompt_index()].ids(), reply.prompt_log_probs(),
                      reply.prompt_alternatives());
  }
  return text;
}

void OpenAiAnswer::AddPromptLogprobs(Choice* choice, const google::protobuf::RepeatedField<int32_t>& ids,
                                     const google::protobuf::RepeatedField<float>& log_probs,
                                     const google::protobuf::RepeatedPtrField<TokenAlternatives>& alternatives) {
  AnswerText text(*model_.tokenizer, {}, std::make_shared<const AnswerTextOptions>());
  choice->last_token.reset();
  for (int i = 0; i < ids.size(); ++i) {
    const int told = i - 1;  // the first one has nothing before it
    const bool known = told >= 0 && told < log_probs.size();
    AddLogprobs(choice, ids[i], known ? &log_probs[told] : nullptr,
                known && told < alternatives.size() ? &alternatives[told] : nullptr, text.characters());
    text.Read(ids[i]);
    choice->last_token = ids[i];
  }
}

ordered_json OpenAiAnswer::TakeLogprobs(Choice* choice) const { return std::exchange(choice->logprobs, nullptr); }

std::string OpenAiAnswer::Finish(Choice* choice, const GeneratedSequence& sequence) {
  choice->finish_reason = FinishReason(sequence.finish_reason());
  if (!sequence.stop_string().empty()) {
    choice->stop_reason = sequence.stop_string();
  } else if (sequence.finish_reason() == GeneratedSequence::STOP) {
    const auto& asked = request_.header.sampling().stop_token_ids();
    if (choice->last_token.has_value() && std::find(asked.begin(), asked.end(), *choice->last_token) != asked.end()) {
      choice->stop_reason = *choice->last_token;
    }
  }
  return choice->text.Finish();
}

void OpenAiAnswer::TellVersion(uint64_t version) {
  first_version_ = std::min(first_version_.value_or(version), version);
  last_version_ = std::max(last_version_.value_or(version), version);
}

ordered_json OpenAiAnswer::Frame(const char* completion, const char* chat) const {
  const uint64_t first = first_version_.value_or(options_.policy_version), last = last_version_.value_or(first);
  return {
      {"id", absl::StrCat(request_.chat ? "chatcmpl-" : "cmpl-", options_.id)},
      {"object", request_.chat ? chat : completion},
      {"created", options_.created},
      {"model", model_.name},
      {"system_fingerprint", absl::StrCat("policy_version_", first, last == first ? "" : absl::StrCat("_to_", last))}};
}

ordered_json OpenAiAnswer::Usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", completion_tokens_},
          {"total_tokens", prompt_tokens_ + completion_tokens_}};
}

std::string OpenAiAnswer::Event(ordered_json choice) const {
  ordered_json frame = Frame("text_completion", "chat.completion.chunk");
  frame["choices"] = ordered_json::array();
  frame["choices"].push_back(std::move(choice));
  if (request_.include_usage) frame["usage"] = nullptr;
  if (request_.continuous_usage) frame["usage"] = Usage();
  return DataEvent(OneLineJson(frame));
}

std::string OpenAiAnswer::Part(int index, Choice* choice, const MessagePart& part, bool last) const {
  ordered_json out = {{"index", index}};
  if (!request_.chat) {
    out["text"] = part.content;
  } else {
    ordered_json delta = ordered_json::object();
    if (!part.reasoning.empty()) delta["reasoning_content"] = part.reasoning;
    if (!part.content.empty()) delta["content"] = part.content;
    for (const ordered_json& call : part.calls) {
      ordered_json told = {{"index", choice->calls_told++}};
      told.update(call);
      delta["tool_calls"].push_back(std::move(told));
    }
    if (delta.empty() && !last) delta["content"] = "";
    out["delta"] = std::move(delta);
  }
  out["logprobs"] = TakeLogprobs(choice);
  out["finish_reason"] = nullptr;
  if (last) {
    out["finish_reason"] = choice->finish_reason;
    out["stop_reason"] = choice->stop_reason;
  }
  return Event(std::move(out));
}

}  // namespace quartet

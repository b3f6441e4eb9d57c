#include "orchestrator/loop/conversation.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

using nlohmann::json;

absl::StatusOr<Tokenizer::Message> ReadMessage(const json& value) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("is of JSON type ", value.type_name(), "; a message is {\"role\": ..., \"content\": ...}"));
  }
  Tokenizer::Message message;
  for (const auto& [name, text] : {std::pair("role", &message.role), std::pair("content", &message.content)}) {
    const auto field = value.find(name);
    if (field == value.end() || !field->is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "its \"", name, "\" is ", field == value.end() ? "missing" : field->type_name(), "; it must be a string"));
    }
    *text = field->get<std::string>();
  }
  for (const auto& [name, field] : value.items()) {
    if (name == "role" || name == "content" || field.is_null()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("has \"", name, "\", which would not be read; a message has \"role\" and \"content\" alone"));
  }
  return message;
}

}  // namespace

absl::StatusOr<std::vector<Tokenizer::Message>> ReadConversation(const Record& record, const std::string& key,
                                                                 const DataConfig& data) {
  const auto list = record.lists.find(key);
  if (list == record.lists.end()) {
    return std::vector<Tokenizer::Message>{
        {"user", absl::StrReplaceAll(data.input_template(), {{"{}", record.fields.at(key)}})}};
  }
  const std::string place = absl::StrCat("field \"", key, "\"");
  const auto error = [&place](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(place, " is a list of messages", what));
  };
  if (!data.apply_chat_template()) return error("; only a chat template writes such: set data.apply_chat_template");
  if (data.input_template() != "{}") return error(", in which data.input_template has no place");
  if (list->second.empty()) return error(" without a message");
  std::vector<Tokenizer::Message> messages;
  for (const json& value : list->second) {
    absl::StatusOr<Tokenizer::Message> message = ReadMessage(value);
    if (!message.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": message ", messages.size(), " (counted from 0) ", message.status().message()));
    }
    messages.push_back(*std::move(message));
  }
  return messages;
}

absl::StatusOr<std::string> ChatText(const std::vector<Tokenizer::Message>& conversation, bool add_generation_prompt,
                                     const Tokenizer& tokenizer) {
  absl::StatusOr<std::string> text = tokenizer.ApplyChatTemplate(conversation, add_generation_prompt);
  if (text.ok()) return text;
  return absl::Status(text.status().code(), absl::StrCat("data.apply_chat_template: ", text.status().message(),
                                                         absl::IsFailedPrecondition(text.status())
                                                             ? "; data.tokenizer_chat_template names a file of one"
                                                             : ""));
}

absl::StatusOr<std::string> PromptText(const std::vector<Tokenizer::Message>& conversation, const DataConfig& data,
                                       const Tokenizer& tokenizer) {
  if (!data.apply_chat_template()) return conversation.front().content;
  return ChatText(conversation, /*add_generation_prompt=*/true, tokenizer);
}

absl::StatusOr<std::vector<int32_t>> PromptIds(const std::string& text, const DataConfig& data,
                                               const Tokenizer& tokenizer) {
  return tokenizer.Encode(text, /*add_special_tokens=*/!data.apply_chat_template());
}

}  // namespace quartet

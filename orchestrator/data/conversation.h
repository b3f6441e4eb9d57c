// Prompts as data sets have them, texts or lists of messages, and as the model reads them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/record.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct Conversation {
  std::vector<Tokenizer::Message> messages;
  nlohmann::ordered_json tools;  // a list; null where there is none
};

// The field `key` of `record`: a text, put into data.input_template, is one message of the user; a list of messages
// {"role", "content"} is taken as it is. At least one message. Tools are the field data.tools_key: a list, or the JSON
// text of one; what is null in them, as columns of Parquet have it for fields that are not there, is left out.
// INVALID_ARGUMENT names the message that is not well-formed, or the field of `data` that a list does not go with.
absl::StatusOr<Conversation> ReadConversation(const Record& record, const std::string& key, const DataConfig& data);

// Puts the answer behind a prompt: the field `key`, which the record has. A text is one message of the assistant; a
// list of messages is taken as it is. INVALID_ARGUMENT as ReadConversation, or where CheckEndsWithAnswer refuses the
// list.
absl::Status AppendAnswer(const Record& record, const std::string& key, const std::string& option,
                          const DataConfig& data, Conversation* conversation);

// That the last message is the assistant's; INVALID_ARGUMENT names `field`, where the messages are.
absl::Status CheckEndsWithAnswer(const std::vector<Tokenizer::Message>& messages, const std::string& field);

// A field in errors: "key" (option), `key` being the value of `option`.
std::string FieldName(const std::string& key, const std::string& option);

// The keys that ReadConversation reads; `option` names the one that `key` is the value of.
std::vector<RowKey> ConversationKeys(const std::string& key, const std::string& option, const DataConfig& data);

// What the model reads before it answers: the conversation through the chat template where `data` says so, else the
// text of its only message. FAILED_PRECONDITION and INVALID_ARGUMENT: the template's errors, after its option.
absl::StatusOr<std::string> PromptText(const Conversation& conversation, const DataConfig& data,
                                       const Tokenizer& tokenizer);

// The ids of PromptText. A chat template writes the special tokens itself; to another text the tokenizer adds its own.
absl::StatusOr<std::vector<int32_t>> PromptIds(const std::string& text, const DataConfig& data,
                                               const Tokenizer& tokenizer);

// The first `count` messages through the template, with or without the opening of the assistant's turn, its errors
// after its option.
absl::StatusOr<std::string> ChatText(const Conversation& conversation, size_t count, bool add_generation_prompt,
                                     const Tokenizer& tokenizer);

constexpr char kAssistant[] = "assistant";

}  // namespace quartet

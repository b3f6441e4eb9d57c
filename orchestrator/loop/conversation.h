// Prompts as data sets have them, texts or lists of messages, and as the model reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/jsonl.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The field `key` of `record`: a text, with prefix and suffix, is one message of the user; a list of messages
// {"role", "content"} is taken as it is. At least one message. INVALID_ARGUMENT names the message that is not
// well-formed, or the field of `data` that a list does not go with.
absl::StatusOr<std::vector<Tokenizer::Message>> ReadConversation(const Record& record, const std::string& key,
                                                                 const DataConfig& data);

// What the model reads before it answers: the conversation through the chat template where `data` says so, else the
// text of its only message. FAILED_PRECONDITION and INVALID_ARGUMENT: the template's errors, after its option.
absl::StatusOr<std::string> PromptText(const std::vector<Tokenizer::Message>& conversation, const DataConfig& data,
                                       const Tokenizer& tokenizer);

// The ids of PromptText. A chat template writes the special tokens itself; to another text the tokenizer adds its own.
absl::StatusOr<std::vector<int32_t>> PromptIds(const std::string& text, const DataConfig& data,
                                               const Tokenizer& tokenizer);

// The template with or without the opening of the assistant's turn, its errors after its option.
absl::StatusOr<std::string> ChatText(const std::vector<Tokenizer::Message>& conversation, bool add_generation_prompt,
                                     const Tokenizer& tokenizer);

constexpr char kAssistant[] = "assistant";

}  // namespace quartet

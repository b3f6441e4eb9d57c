// Prompts as data sets have them, texts or lists of messages, and as the model reads them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/record.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct Conversation {
  std::vector<ChatMessage> messages;
  nlohmann::ordered_json tools;  // a list; null where there is none
  // The texts of content that is a list of parts, but for each first one; they stand within that of the messages.
  std::vector<std::string> later_parts;
};

// The field `key` of `record`: a text, put into data.input_template, is one message of the user; a list of messages
// (ReadMessageList) is taken as it is. At least one message. Tools are the field data.tools_key (ReadTools).
// INVALID_ARGUMENT names the message that is not well-formed, or the field of `data` that a list does not go with.
absl::StatusOr<Conversation> ReadConversation(const Record& record, const std::string& key, const DataConfig& data);

// A key of rows and the option whose value it is.
struct OptionKey {
  std::string key, option;
};

// A conversation that ends in an answer, out of the fields `prompt` and `answer` of `record`: either one alone, which
// is the whole conversation, or both. An answer beside a prompt is a text, the assistant's next message; or messages
// that go on where the prompt ends, the first of them the assistant's; or the whole conversation with the prompt in it,
// before its last message: the prompt's messages at its beginning, or a prompt that is a text as one of the user's
// messages, but for spaces around it.
//
// INVALID_ARGUMENT as ReadConversation; where there is no answer, or one behind another, or nothing before it; and
// where two messages in a row are the user's, or the assistant's.
absl::StatusOr<Conversation> ReadAnswered(const Record& record, const OptionKey& prompt, const OptionKey& answer,
                                          const DataConfig& data);

// A field in errors: "key" (option), `key` being the value of `option`.
std::string FieldName(const std::string& key, const std::string& option);

// The keys that ReadConversation reads; `option` names the one that `key` is the value of.
std::vector<RowKey> ConversationKeys(const std::string& key, const std::string& option, const DataConfig& data);

// The content of a message; "" where it has calls alone.
std::string TextOf(const ChatMessage& message);

// What the model reads before it answers: the conversation through the chat template where `data` says so, else the
// text of its only message. FAILED_PRECONDITION and INVALID_ARGUMENT: the template's errors, after its option.
absl::StatusOr<std::string> PromptText(const Conversation& conversation, const DataConfig& data,
                                       const Tokenizer& tokenizer);

// The ids of PromptText. A chat template writes the special tokens itself; before another text stand the tokenizer's
// (Tokenizer::EncodePrompt).
absl::StatusOr<std::vector<int32_t>> PromptIds(const std::string& text, const DataConfig& data,
                                               const Tokenizer& tokenizer);

// `ids` are the conversation's as the model reads it. INVALID_ARGUMENT where the tokenizer or the chat template writes
// the token that texts begin with (BOS, Tokenizer::bos_id), and a text of the conversation begins with it, too, as one
// does that was put through a template before; spaces do not count. Within a text it may stand, and so it may in front
// of an answer where it is one of `ends`, the tokens that end answers.
absl::Status CheckOneBos(const Conversation& conversation, const DataConfig& data, const Tokenizer& tokenizer,
                         const std::vector<int32_t>& ids, const std::set<int32_t>& ends = {});

// The first `count` messages through the template, with or without the opening of the assistant's turn, its errors
// after its option.
absl::StatusOr<std::string> ChatText(const Conversation& conversation, size_t count, bool add_generation_prompt,
                                     const Tokenizer& tokenizer);

constexpr char kUser[] = "user";
constexpr char kAssistant[] = "assistant";

}  // namespace quartet

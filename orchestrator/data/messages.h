// Lists of messages in rows, as OpenAI's interface and as ShareGPT's have them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/record.h"
#include "core/tokenizer/chat_message.h"

namespace quartet {

// The messages of `list`, which is not empty: what ReadChatMessage reads, with a name in those of tools alone; or
// {"from": ..., "value": ...}, where "human" is the user, "gpt" the assistant, "observation" a tool, and
// "function_call" the assistant whose calls are the JSON text of one {"name", "arguments"} or a list of them.
// INVALID_ARGUMENT begins with `place` and names the part of the message, its value and what is allowed.
absl::StatusOr<std::vector<ChatMessage>> ReadMessageList(const nlohmann::ordered_json& list, const std::string& place);

// The field `key` of `record`, data.tools_key: a list, or the JSON text of one; null where there is none.
absl::StatusOr<nlohmann::ordered_json> ReadTools(const Record& record, const std::string& key);

}  // namespace quartet

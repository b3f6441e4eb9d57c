// Messages of a chat as chat templates get them. LibTorch-free. Thread safe.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quartet {

// {"role": a text, "content": a text or null, and of the assistant "reasoning_content": a text, "tool_calls": a list
// that is not empty, of a tool "tool_call_id" and "name": texts}. What is not there has no key, and keys stand in this
// order, so that equal messages compare equal. A call is {"id": a text, where there is one, "type": "function",
// "function": {"name": a text, "arguments": an object}}.
using ChatMessage = nlohmann::ordered_json;

ChatMessage MakeChatMessage(std::string_view role, std::string_view content);

// What OpenAI's interface and data sets have as a message. Beyond ChatMessage: content that is a list of parts
// {"type": "text", "text": ...}, which are put together with newlines between; calls without "type" or "function"
// around them; arguments that are the JSON text of an object; empty lists of calls, and what is null. A name may stand
// in every message. Content may be missing, or null, beside calls alone, but for a tool's.
//
// INVALID_ARGUMENT: what is at `place`, or inside of it, with its value and what is allowed: "place.content is 7; ...".
absl::StatusOr<ChatMessage> ReadChatMessage(const nlohmann::ordered_json& value, const std::string& place);

}  // namespace quartet

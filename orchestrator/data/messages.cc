#include "orchestrator/data/messages.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

using json = nlohmann::ordered_json;

struct Speaker {
  std::string_view from, role;
};
// As LLaMA-Factory and Axolotl know them.
constexpr Speaker kSpeakers[] = {{"human", "user"},
                                 {"user", "user"},
                                 {"gpt", "assistant"},
                                 {"model", "assistant"},
                                 {"assistant", "assistant"},
                                 {"system", "system"},
                                 {"tool", "tool"},
                                 {"observation", "tool"},
                                 {"function_response", "tool"},
                                 {"function_call", "assistant"}};
constexpr std::string_view kCalls = "function_call";

// A message of ShareGPT's in the keys of OpenAI's.
absl::StatusOr<json> FromShareGpt(const json& value, const std::string& place) {
  for (const auto& [name, field] : value.items()) {
    const bool known = name == "from" || name == "value";
    if (known ? field.is_string() : field.is_null()) continue;
    return absl::InvalidArgumentError(
        known ? absl::StrCat(place, ".", name, " is of JSON type ", field.type_name(), "; allowed: a string")
              : absl::StrCat(place, ".", name, " is not known, and would not be read; allowed: from, value"));
  }
  if (!value.contains("value")) return absl::InvalidArgumentError(absl::StrCat(place, " has no \"value\""));
  const auto& from = value["from"].get_ref<const std::string&>();
  const auto& text = value["value"].get_ref<const std::string&>();
  const auto speaker = std::ranges::find(kSpeakers, from, &Speaker::from);
  if (speaker == std::end(kSpeakers)) {
    const auto add = [](std::string* out, const Speaker& known) { out->append(known.from); };
    return absl::InvalidArgumentError(
        absl::StrCat(place, ".from is ", Quoted(from), "; allowed: ", absl::StrJoin(kSpeakers, ", ", add)));
  }
  json message = {{"role", speaker->role}};
  if (from != kCalls) {
    message["content"] = text;
    return message;
  }
  QUARTET_ASSIGN_OR_RETURN(json calls, ParseOrderedJson(text, place + ".value"));
  message["tool_calls"] = calls.is_array() ? std::move(calls) : json::array({std::move(calls)});
  return message;
}

}  // namespace

absl::StatusOr<std::vector<ChatMessage>> ReadMessageList(const json& list, const std::string& place) {
  std::vector<ChatMessage> messages;
  for (const json& given : list) {
    const std::string at = absl::StrCat(place, ": message[", messages.size(), "]");
    json value = given;
    if (given.is_object() && given.contains("from") && !given.contains("role")) {
      QUARTET_ASSIGN_OR_RETURN(value, FromShareGpt(given, at));
    }
    QUARTET_ASSIGN_OR_RETURN(ChatMessage message, ReadChatMessage(value, at));
    if (message.contains("name") && message["role"] != "tool") {
      return absl::InvalidArgumentError(
          absl::StrCat(at, ".name would not be read by most chat templates; allowed: in a tool's messages"));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

absl::StatusOr<json> ReadTools(const Record& record, const std::string& key) {
  if (const auto list = record.lists.find(key); list != record.lists.end()) return list->second;
  const auto text = record.fields.find(key);
  if (text == record.fields.end()) return json();
  const std::string place = absl::StrCat("field \"", key, "\" (data.tools_key)");
  QUARTET_ASSIGN_OR_RETURN(json tools, ParseOrderedJson(text->second, place));
  if (tools.is_array()) return tools;
  return absl::InvalidArgumentError(
      absl::StrCat(place, " is the JSON text of a value of type ", tools.type_name(), "; it must be a list"));
}

}  // namespace quartet

#include "core/tokenizer/chat_message.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr char kText[] = "a string";
constexpr char kArguments[] = "an object, or the JSON text of one";

absl::Status Refused(const std::string& place, const OrderedJson& value, const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat(place, " is ", CutJson(value), "; allowed: ", allowed));
}

// Null where there is none, or a null.
const OrderedJson* Find(const OrderedJson& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// `object` has none but these keys.
absl::Status CheckKeys(const OrderedJson& object, const std::string& place, std::initializer_list<const char*> known) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || std::find(known.begin(), known.end(), name) != known.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(place, ".", name, " is not known, and would not be read; allowed: ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

absl::Status CopyText(const OrderedJson& from, const std::string& place, const char* name, OrderedJson* to) {
  const OrderedJson* text = Find(from, name);
  if (text == nullptr) return absl::OkStatus();
  if (!text->is_string()) return Refused(absl::StrCat(place, ".", name), *text, kText);
  (*to)[name] = *text;
  return absl::OkStatus();
}

// Parts may have further keys, such as marks for caches.
absl::StatusOr<OrderedJson> ReadContent(const OrderedJson& content, const std::string& place) {
  if (content.is_string()) return content;
  if (!content.is_array()) return Refused(place, content, R"(a string, or a list of {"type": "text", "text": ...})");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const OrderedJson& part = content[i];
    const OrderedJson* words =
        part.is_object() && part.value("type", OrderedJson()) == "text" ? Find(part, "text") : nullptr;
    if (words == nullptr || !words->is_string()) {
      return Refused(absl::StrCat(place, "[", i, "]"), part, R"({"type": "text", "text": ...})");
    }
    if (i > 0) text += '\n';
    text += words->get_ref<const std::string&>();
  }
  return OrderedJson(std::move(text));
}

absl::StatusOr<OrderedJson> ReadArguments(const OrderedJson* arguments, const std::string& place) {
  if (arguments == nullptr) return OrderedJson::object();
  if (arguments->is_object()) return *arguments;
  if (!arguments->is_string()) return Refused(place, *arguments, kArguments);
  const auto& text = arguments->get_ref<const std::string&>();
  if (text.empty()) return OrderedJson::object();
  absl::StatusOr<OrderedJson> parsed = ParseOrderedJson(text, place);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Refused(place, *arguments, kArguments).message(), " (", parsed.status().message(), ")"));
  }
  if (!parsed->is_object()) return Refused(place, *arguments, kArguments);
  return parsed;
}

absl::StatusOr<OrderedJson> ReadCall(const OrderedJson& value, const std::string& place) {
  constexpr char kCall[] = R"({"type": "function", "function": {"name": ..., "arguments": ...}})";
  if (!value.is_object()) return Refused(place, value, kCall);
  const OrderedJson* function = Find(value, "function");
  const std::string inside = function == nullptr ? place : place + ".function";
  if (function == nullptr) {
    function = &value;
    QUARTET_RETURN_IF_ERROR(CheckKeys(value, place, {"id", "type", "name", "arguments"}));
  } else {
    QUARTET_RETURN_IF_ERROR(CheckKeys(value, place, {"id", "type", "function", "index"}));
    if (!function->is_object()) return Refused(inside, *function, R"({"name": ..., "arguments": ...})");
    QUARTET_RETURN_IF_ERROR(CheckKeys(*function, inside, {"name", "arguments"}));
  }
  if (const OrderedJson* type = Find(value, "type"); type != nullptr && *type != "function") {
    return Refused(place + ".type", *type, "\"function\"");
  }
  OrderedJson call = OrderedJson::object(), called = OrderedJson::object();
  QUARTET_RETURN_IF_ERROR(CopyText(value, place, "id", &call));
  QUARTET_RETURN_IF_ERROR(CopyText(*function, inside, "name", &called));
  if (!called.contains("name")) return Refused(inside, *function, "a string as \"name\"");
  QUARTET_ASSIGN_OR_RETURN(called["arguments"], ReadArguments(Find(*function, "arguments"), inside + ".arguments"));
  call["type"] = "function";
  call["function"] = std::move(called);
  return call;
}

absl::StatusOr<OrderedJson> ReadCalls(const OrderedJson& value, const std::string& place) {
  if (!value.is_array()) return Refused(place, value, "a list of calls");
  OrderedJson calls = OrderedJson::array();
  for (const OrderedJson& call : value) {
    QUARTET_ASSIGN_OR_RETURN(OrderedJson read, ReadCall(call, absl::StrCat(place, "[", calls.size(), "]")));
    calls.push_back(std::move(read));
  }
  return calls;
}

}  // namespace

ChatMessage MakeChatMessage(std::string_view role, std::string_view content) {
  return {{"role", role}, {"content", content}};
}

absl::StatusOr<ChatMessage> ReadChatMessage(const OrderedJson& value, const std::string& place) {
  if (!value.is_object()) return Refused(place, value, R"({"role": ..., "content": ...})");
  QUARTET_RETURN_IF_ERROR(
      CheckKeys(value, place, {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"}));
  ChatMessage message = OrderedJson::object();
  QUARTET_RETURN_IF_ERROR(CopyText(value, place, "role", &message));
  if (!message.contains("role")) return Refused(place, value, "a string as \"role\"");
  const bool of_assistant = message["role"] == "assistant";
  OrderedJson calls;
  if (const OrderedJson* given = Find(value, "tool_calls")) {
    QUARTET_ASSIGN_OR_RETURN(calls, ReadCalls(*given, place + ".tool_calls"));
  }
  if (!calls.empty() && !of_assistant) return Refused(place + ".tool_calls", calls, "calls of the assistant alone");
  if (const OrderedJson* content = Find(value, "content")) {
    QUARTET_ASSIGN_OR_RETURN(message["content"], ReadContent(*content, place + ".content"));
  } else if (!calls.empty()) {
    message["content"] = nullptr;
  } else {
    return Refused(place, value, R"(a "content": a string, or a list of {"type": "text", "text": ...})");
  }
  QUARTET_RETURN_IF_ERROR(CopyText(value, place, "reasoning_content", &message));
  if (message.contains("reasoning_content") && !of_assistant) {
    return Refused(place + ".reasoning_content", message["reasoning_content"], "thoughts of the assistant alone");
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  QUARTET_RETURN_IF_ERROR(CopyText(value, place, "tool_call_id", &message));
  QUARTET_RETURN_IF_ERROR(CopyText(value, place, "name", &message));
  return message;
}

}  // namespace quartet

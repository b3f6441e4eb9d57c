#include "core/openai/chat_parameters.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/openai/api_error.h"
#include "core/openai/call_format.h"

namespace quartet {
namespace {

using Json = nlohmann::ordered_json;

absl::Status ReadMessages(Parameters* parameters, OpenAiChat* chat) {
  const Json* messages = parameters->Find("messages");
  const char* allowed = R"(a list of {"role": ..., "content": ...}, not empty)";
  if (messages == nullptr) return ParameterError("messages", absl::StrCat("is missing; allowed: ", allowed));
  if (!messages->is_array() || messages->empty()) return Refused("messages", *messages, allowed);
  for (size_t i = 0; i < messages->size(); ++i) {
    QUARTET_ASSIGN_OR_RETURN(chat->messages.emplace_back(),
                             ReadOpenAiMessage((*messages)[i], absl::StrCat("messages[", i, "]")));
  }
  return absl::OkStatus();
}

// Whether calls are read follows from the choice and the template.
absl::Status ReadTools(std::string_view chat_template, Parameters* parameters, OpenAiChat* chat) {
  const Json* tools = parameters->Find("tools");
  constexpr char kTools[] = R"(a list of {"type": "function", "function": {"name": ..., "parameters": ...}})";
  if (tools != nullptr && !tools->is_array()) return Refused("tools", *tools, kTools);
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const Json function = tool.is_object() ? tool.value("function", Json()) : Json();
    if (!function.is_object() || !function.value("name", Json()).is_string() ||
        tool.value("type", Json("function")) != "function") {
      return Refused(absl::StrCat("tools[", i, "]"), tool, kTools);
    }
  }
  const bool has_tools = tools != nullptr && !tools->empty();
  bool reads_calls = has_tools;
  if (const Json* choice = parameters->Find("tool_choice")) {
    if (*choice != "auto" && *choice != "none") {
      return Refused("tool_choice", *choice, absl::StrCat(R"("auto", "none" ()", kDrawnFreely, ")"));
    }
    reads_calls = reads_calls && *choice == "auto";
  }
  parameters->Ignore("parallel_tool_calls");
  if (reads_calls) {
    QUARTET_RETURN_IF_ERROR(parameters->OnlyNeutral("parallel_tool_calls", {true}, kDrawnFreely));
    chat->request.form.calls = CallFormatOf(chat_template);
  }
  if (!has_tools) return absl::OkStatus();
  chat->kwargs["tools"] = *tools;
  chat->has_tools = true;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatMessage> ReadOpenAiMessage(const Json& given, const std::string& place) {
  if (!given.is_object()) return Refused(place, given, R"({"role": ..., "content": ...})");
  // What answers have that clients send back, and means nothing here.
  Parameters fields(given, place + ".");
  Json message = given;
  for (const char* name : {"refusal", "annotations", "audio", "function_call"}) {
    QUARTET_RETURN_IF_ERROR(fields.OnlyNeutral(name, {}));
    message.erase(name);
  }
  if (const auto content = message.find("content"); content != message.end() && content->is_null()) *content = "";
  absl::StatusOr<ChatMessage> read = ReadChatMessage(message, place);
  if (read.ok()) return read;
  const std::pair<absl::string_view, absl::string_view> error =
      absl::StrSplit(read.status().message(), absl::MaxSplits(' ', 1));
  return ParameterError(error.first, error.second);
}

absl::Status ReadChatParameters(std::string_view chat_template, Parameters* parameters, OpenAiChat* chat) {
  // What the template writes has the special tokens in it.
  QUARTET_RETURN_IF_ERROR(parameters->Read("add_special_tokens", &chat->add_special_tokens));
  QUARTET_RETURN_IF_ERROR(ReadMessages(parameters, chat));
  if (const Json* given = parameters->Find("chat_template_kwargs")) {
    if (!given->is_object()) return Refused("chat_template_kwargs", *given, "an object");
    if (given->contains("tools")) {
      return ParameterError("chat_template_kwargs",
                            "has tools, which would not be read in answers; allowed: the parameter tools");
    }
    chat->kwargs = *given;
  }
  chat->request.form.thoughts = MessageForm::WritesThoughts(chat_template);
  return ReadTools(chat_template, parameters, chat);
}

absl::Status ChatError(const OpenAiChat& chat, const Tokenizer& tokenizer, const absl::Status& error) {
  if (absl::IsFailedPrecondition(error)) {
    return ParameterError("messages", "cannot be written: the model has no chat template");
  }
  const std::string why = WithoutFolder(error.message());
  const auto writes = [&](const Json& kwargs) {
    return tokenizer.ApplyChatTemplate(chat.messages, /*add_generation_prompt=*/true, kwargs).ok();
  };
  if (writes(chat.kwargs)) return ParameterError("messages", absl::StrCat("cannot be read: ", why));
  Json kwargs = chat.kwargs;
  if (chat.has_tools) {
    kwargs.erase("tools");
    if (writes(kwargs)) return ParameterError("tools", absl::StrCat("cannot be used: ", why));
  }
  if (!kwargs.empty() && writes(Json::object())) {
    return ParameterError("chat_template_kwargs", absl::StrCat("cannot be used: ", why));
  }
  return ParameterError("messages", absl::StrCat("cannot be written: ", why));
}

}  // namespace quartet

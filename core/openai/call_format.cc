#include "core/openai/call_format.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "core/base/hash.h"
#include "core/data/json.h"

namespace quartet {
namespace {

constexpr int kIdLength = 9;

// The first that fits.
const std::vector<CallFormat>& CallFormats() {
  static const auto* formats = new std::vector<CallFormat>{
      {.name = "hermes",  // Qwen2.5, Qwen3, Hermes 2 and 3
       .known_by = {"<tool_call>", "</tool_call>"},
       .begin = "<tool_call>",
       .end = "</tool_call>",
       .bare = false,
       .list = false,
       .arguments = {"arguments"}},
      {.name = "mistral",
       .known_by = {"[TOOL_CALLS]"},
       .begin = "[TOOL_CALLS]",
       .end = "",
       .bare = false,
       .list = true,
       .arguments = {"arguments"}},
      {.name = "llama3_json",
       .known_by = {"<|start_header_id|>", "\"parameters\": "},
       .begin = "<|python_tag|>",
       .end = "",
       .bare = true,
       .list = false,
       .arguments = {"parameters", "arguments"}},
  };
  return *formats;
}

std::optional<WrittenCall> ReadWrittenCall(const CallFormat& format, const nlohmann::ordered_json& value) {
  if (!value.is_object()) return std::nullopt;
  WrittenCall call;
  for (const auto& [key, part] : value.items()) {
    if (key == "name" && part.is_string()) {
      call.name = part.get<std::string>();
    } else if (key == "id" && part.is_string()) {
      call.id = part.get<std::string>();
    } else if (std::ranges::find(format.arguments, key) != format.arguments.end() && part.is_object() &&
               call.arguments.is_null()) {
      call.arguments = part;
    } else if (key != "type" || part != "function") {
      return std::nullopt;
    }
  }
  if (call.name.empty() || call.arguments.is_null()) return std::nullopt;
  return call;
}

}  // namespace

const CallFormat* CallFormatOf(std::string_view chat_template) {
  for (const CallFormat& format : CallFormats()) {
    if (std::ranges::all_of(format.known_by, [&](std::string_view mark) {
          return chat_template.find(mark) != std::string_view::npos;
        })) {
      return &format;
    }
  }
  return nullptr;
}

std::optional<std::vector<WrittenCall>> ReadCalls(const CallFormat& format, std::string_view text) {
  const absl::StatusOr<nlohmann::ordered_json> value = ParseOrderedJson(text, "calls");
  if (!value.ok() || value->is_array() != format.list) return std::nullopt;
  std::vector<WrittenCall> calls;
  for (const nlohmann::ordered_json& one : format.list ? *value : nlohmann::ordered_json::array({*value})) {
    std::optional<WrittenCall> call = ReadWrittenCall(format, one);
    if (!call.has_value()) return std::nullopt;
    calls.push_back(*std::move(call));
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

bool IsCallId(std::string_view id) { return id.size() == kIdLength && std::ranges::all_of(id, absl::ascii_isalnum); }

std::string MakeCallId(std::string_view seed) {
  constexpr std::string_view kCharacters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id;
  for (uint64_t rest = HashBytes(seed); id.size() < kIdLength; rest /= kCharacters.size()) {
    id += kCharacters[rest % kCharacters.size()];
  }
  return id;
}

}  // namespace quartet

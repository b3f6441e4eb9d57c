#include "core/clients/testing/byte_tokenizer.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace quartet {

absl::StatusOr<std::vector<int32_t>> ByteTokenizer::Encode(std::string_view text, bool) const {
  return std::vector<int32_t>(text.begin(), text.end());
}
std::string ByteTokenizer::Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const {
  std::string text;
  for (int32_t id : ids) {
    if (id != kEnd) {
      text.push_back(static_cast<char>(id));
    } else if (!skip_special_tokens) {
      text += "<end>";
    }
  }
  return text;
}
std::optional<int32_t> ByteTokenizer::TokenToId(std::string_view token) const {
  return token.size() == 1 ? std::optional<int32_t>(token[0]) : std::nullopt;
}
absl::StatusOr<std::string> ByteTokenizer::ApplyChatTemplate(const std::vector<ChatMessage>& messages,
                                                             bool add_generation_prompt,
                                                             const nlohmann::ordered_json& kwargs) const {
  std::string text = kwargs.contains("tools") ? kwargs["tools"].dump() : "";
  for (const ChatMessage& message : messages) {
    absl::StrAppend(&text, "[", message["role"].get<std::string>(), "]");
    if (message["content"].is_string()) absl::StrAppend(&text, message["content"].get<std::string>());
    if (message.contains("tool_calls")) absl::StrAppend(&text, message["tool_calls"].dump());
  }
  return add_generation_prompt ? text + "[assistant]" : text;
}

}  // namespace quartet

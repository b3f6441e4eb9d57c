#include "orchestrator/testing/byte_tokenizer.h"

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
absl::StatusOr<std::string> ByteTokenizer::ApplyChatTemplate(const std::vector<Message>& messages,
                                                             bool add_generation_prompt,
                                                             const nlohmann::ordered_json& tools) const {
  std::string text = tools.is_null() ? "" : tools.dump();
  for (const Message& message : messages) absl::StrAppend(&text, "[", message.role, "]", message.content);
  return add_generation_prompt ? text + "[assistant]" : text;
}

}  // namespace quartet

// A tokenizer for tests whose tokens can be any bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/utf8.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {

// Tokens are pieces of text or bytes; 0 is special. As many tokenizers do, the first word's leading space is dropped.
class PieceTokenizer : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  // Each time the longest piece; what is none is left out. Special tokens at the beginning: 0.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const override {
    std::vector<int32_t> ids;
    if (add_special_tokens) ids.push_back(0);
    while (!text.empty()) {
      int32_t best = -1;
      for (int32_t id = 0; id < vocab_size(); ++id) {
        if (text.starts_with(pieces_[id]) && (best < 0 || pieces_[id].size() > pieces_[best].size())) best = id;
      }
      if (best >= 0) ids.push_back(best);
      text.remove_prefix(best >= 0 ? pieces_[best].size() : 1);
    }
    return ids;
  }
  std::vector<int32_t> ids_before_text() const override { return {0}; }
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const override {
    std::string bytes;
    for (const int32_t id : ids) {
      if (id != 0 || !skip_special_tokens) bytes += pieces_[id];
    }
    if (bytes.starts_with(' ')) bytes.erase(0, 1);
    return ReplaceInvalidUtf8(bytes);
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  std::optional<int32_t> TokenToId(std::string_view) const override { return std::nullopt; }
  absl::StatusOr<std::string> ApplyChatTemplate(const std::vector<ChatMessage>& messages, bool,
                                                const nlohmann::ordered_json& kwargs) const override {
    if (kwargs.contains("unread")) return absl::InvalidArgumentError("/m/chat.jinja does not read \"unread\"");
    std::string text;
    for (const ChatMessage& message : messages) {
      text += message["role"].get<std::string>() + ":" + message["content"].get<std::string>() + ";";
    }
    return text;
  }

 private:
  std::vector<std::string> pieces_;
};

}  // namespace quartet

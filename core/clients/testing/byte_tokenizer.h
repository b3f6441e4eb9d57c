// A tokenizer that a test can do in its head.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {

// One token a byte; id 0 is the end token, a special one.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kEnd = 0;
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const override;
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const override;
  int32_t vocab_size() const override { return 128; }
  std::optional<int32_t> TokenToId(std::string_view token) const override;
  // "[user]a[assistant]b": no turn is ended. Tools stand before it, as JSON.
  absl::StatusOr<std::string> ApplyChatTemplate(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                                const nlohmann::ordered_json& kwargs) const override;
};

}  // namespace quartet

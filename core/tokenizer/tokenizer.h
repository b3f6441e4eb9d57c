// Text to token ids and back, as tokenizer.json of a Hugging Face folder says. LibTorch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"

namespace quartet {

// Larger tokenizer.json files are refused.
inline constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;

// Immutable after Load; thread safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Reads `folder`/tokenizer.json, tokenizer_config.json and the chat template, or in its place the file
  // `chat_template` where that is not "". `date` is the day that a chat template writes which writes one; nothing: each
  // time the present one. INVALID_ARGUMENT names the file and the part that is not supported or not well-formed.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& folder,
                                                         const std::string& chat_template = "",
                                                         std::optional<absl::CivilDay> date = std::nullopt);

  // Special tokens that stand in the text are recognised. add_special_tokens: what the post-processor adds (BOS).
  // INVALID_ARGUMENT names the part of tokenizer.json whose pattern takes more time or memory on this text than is
  // allowed.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const = 0;
  // What Encode puts before a text with add_special_tokens: BOS most often, or nothing.
  virtual std::vector<int32_t> ids_before_text() const { return {}; }
  // As in transformers: invalid UTF-8 becomes U+FFFD, and where the folder says clean_up_tokenization_spaces the spaces
  // are cleaned up.
  virtual std::string Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const = 0;
  // The same, and never cleaned up: what the tokens say, of which code and stop strings must not lose a space.
  virtual std::string DecodeUncleaned(const std::vector<int32_t>& ids, bool skip_special_tokens) const {
    return Decode(ids, skip_special_tokens);
  }

  // Largest token id + 1, added tokens included.
  virtual int32_t vocab_size() const = 0;
  virtual std::optional<int32_t> TokenToId(std::string_view token) const = 0;

  // Whether the chat template may write the day.
  virtual bool writes_date() const { return false; }

  struct Message {
    std::string role;
    std::string content;
    bool operator==(const Message&) const = default;
  };
  // The text of a conversation; with `add_generation_prompt` the opening of the assistant's turn comes at its end.
  // `tools`, a list or null, is what the template knows by that name. FAILED_PRECONDITION where there is no chat
  // template.
  virtual absl::StatusOr<std::string> ApplyChatTemplate(const std::vector<Message>& messages,
                                                        bool add_generation_prompt,
                                                        const nlohmann::ordered_json& tools) const = 0;
  // The same without tools.
  absl::StatusOr<std::string> ApplyChatTemplate(const std::vector<Message>& messages, bool add_generation_prompt) const;
};

}  // namespace quartet

// Text to token ids and back, as tokenizer.json of a Hugging Face folder says. LibTorch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "core/tokenizer/chat_message.h"

namespace quartet {

// Larger tokenizer.json files are refused.
inline constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;

// What of a chat template is not its folder's.
struct ChatTemplateOptions {
  std::string file;  // in the place of the folder's template; "": that one
  // The day that a template writes which writes one; nothing: each time the present one.
  std::optional<absl::CivilDay> date;
  // Values by name that the template knows in every chat: the JSON text of an object, such as
  // {"enable_thinking": false}; "": none.
  std::string kwargs;
};

// Immutable after Load; thread safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Reads `folder`/tokenizer.json, tokenizer_config.json and the chat template. INVALID_ARGUMENT names the file and the
  // part that is not supported or not well-formed; or begins with "chat_template_kwargs: ", where
  // these are no object, or the template does not read one of them.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& folder,
                                                         const ChatTemplateOptions& chat = {});

  // Special tokens that stand in the text are recognised. add_special_tokens: what the post-processor adds (BOS).
  // INVALID_ARGUMENT names the part of tokenizer.json whose pattern takes more time or memory on this text than is
  // allowed.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const = 0;
  // What Encode puts before a text with add_special_tokens: BOS most often, or nothing.
  virtual std::vector<int32_t> ids_before_text() const { return {}; }
  // BOS: the first of these, or, where there are none, what chat templates know as bos_token; nothing where there is
  // no such token.
  virtual std::optional<int32_t> bos_id() const {
    const std::vector<int32_t> before = ids_before_text();
    return before.empty() ? std::nullopt : std::optional(before.front());
  }
  // What a model reads before it goes on with `text`: Encode, with what the tokenizer puts before a text, but without
  // what some put behind it, too (EOS), after which nothing would follow. Errors as Encode.
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(std::string_view text) const {
    absl::StatusOr<std::vector<int32_t>> ids = Encode(text, /*add_special_tokens=*/false);
    if (!ids.ok()) return ids;
    const std::vector<int32_t> before = ids_before_text();
    ids->insert(ids->begin(), before.begin(), before.end());
    return ids;
  }
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

  // The chat template's own text; "": there is none.
  virtual std::string_view chat_template() const { return ""; }
  // Whether the chat template may write the day.
  virtual bool writes_date() const { return false; }

  // The text of a conversation; with `add_generation_prompt` the opening of the assistant's turn comes at its end.
  // `kwargs`, an object, are further values that the template knows by their names, `tools` among them, before those of
  // Load. FAILED_PRECONDITION where there is no chat template. INVALID_ARGUMENT: the template's errors; and where it
  // does not read one of `kwargs`, or the calls or thoughts of a message, which would be left out without a word.
  virtual absl::StatusOr<std::string> ApplyChatTemplate(const std::vector<ChatMessage>& messages,
                                                        bool add_generation_prompt,
                                                        const nlohmann::ordered_json& kwargs) const = 0;
  // The same without kwargs.
  absl::StatusOr<std::string> ApplyChatTemplate(const std::vector<ChatMessage>& messages,
                                                bool add_generation_prompt) const {
    return ApplyChatTemplate(messages, add_generation_prompt, nlohmann::ordered_json::object());
  }
};

}  // namespace quartet

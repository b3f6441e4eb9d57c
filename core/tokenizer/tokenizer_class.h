// The classes of transformers that read a tokenizer's folder, of those that matter to what is read.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quartet {

// Larger config.json and tokenizer_config.json files are refused.
inline constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

// What a class of transformers takes for a special token that tokenizer_config.json does not name; null for none.
struct TokenizerClass {
  std::string_view name;  // "Fast" may follow
  const char* bos;
  const char* eos;
  const char* unk;
  const char* pad;
  // Set: the class puts a post-processor of its own, by add_bos_token (this is its default) and add_eos_token, in the
  // place of the file's. The other classes pass over these.
  std::optional<bool> add_bos_token;
};

// The class by which transformers reads `folder`, whose tokenizer_config.json is `tokenizer_config`, or else that of
// the model's type in its config.json; one that takes nothing where it is of none of these. INVALID_ARGUMENT where
// config.json cannot be read.
absl::StatusOr<TokenizerClass> FindTokenizerClass(const std::string& folder, const nlohmann::json& tokenizer_config);

}  // namespace quartet

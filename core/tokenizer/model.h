// What turns a pre-tokenized word into ids: "BPE" and "WordLevel" of tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

// Immutable but for a cache; thread safe.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual void Tokenize(std::string_view word, std::vector<int32_t>* ids) const = 0;
  virtual std::optional<int32_t> TokenToId(std::string_view token) const = 0;
  virtual const std::string* IdToToken(int32_t id) const = 0;  // null where there is none
  virtual int32_t max_id() const = 0;
};

// Reads the "model" of tokenizer.json. INVALID_ARGUMENT names the part of it.
absl::StatusOr<std::unique_ptr<TokenModel>> MakeTokenModel(const nlohmann::json& model);

}  // namespace quartet

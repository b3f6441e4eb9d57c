// The steps around the model in tokenizer.json: normalizer, pre_tokenizer, post_processor, decoder. Each is a function
// made from its JSON once. Errors are INVALID_ARGUMENT and name the step's type or field, those of the functions made,
// which are thread safe, the step whose pattern costs more than is allowed.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

// A part of the text on its way to the model.
struct Piece {
  std::string text;
  bool at_start = false;  // of the whole text
};

using Normalizer = std::function<absl::StatusOr<std::string>(std::string)>;
using PreTokenizer = std::function<absl::StatusOr<std::vector<Piece>>(std::vector<Piece>)>;
using PostProcessor = std::function<std::vector<int32_t>(std::vector<int32_t>)>;
using TokenDecoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

// JSON null makes the step that changes nothing.
absl::StatusOr<Normalizer> MakeNormalizer(const nlohmann::json& step);
absl::StatusOr<PreTokenizer> MakePreTokenizer(const nlohmann::json& step);
absl::StatusOr<PostProcessor> MakePostProcessor(const nlohmann::json& step);
// Null makes one that joins the tokens with spaces. The text is what the returned tokens make end to end.
// It is valid UTF-8. A decoder has no regular expressions.
absl::StatusOr<TokenDecoder> MakeTokenDecoder(const nlohmann::json& step);

}  // namespace quartet

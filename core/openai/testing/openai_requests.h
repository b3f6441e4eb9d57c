// A model that is served, and requests for it, for tests.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "core/openai/openai_request.h"
#include "core/tokenizer/testing/piece_tokenizer.h"

namespace quartet {

constexpr uint64_t kSeed = 77;

inline const PieceTokenizer& Words() {
  static const auto* tokenizer =
      new PieceTokenizer({"<end>", " the", " cat", " sat", "sa", "t!", "\n", "user", ":", ";", "hi", "\xF0", "\x9F"});
  return *tokenizer;
}

inline const ServedModel& Model() {
  static const auto* model = new ServedModel{
      .name = "tiny", .tokenizer = &Words(), .vocab_size = 13, .max_model_len = 64, .max_sequences = 100};
  return *model;
}

inline absl::StatusOr<OpenAiRequest> Read(bool chat, const nlohmann::json& body) {
  return ReadOpenAiRequest(chat, body.dump(), Model(), kSeed);
}
inline OpenAiRequest Completion(nlohmann::json more) {
  more.emplace("prompt", "hi");
  return Read(false, more).value();
}
inline OpenAiRequest Chat(nlohmann::json more) {
  more.emplace("messages", nlohmann::json::array({{{"role", "user"}, {"content", "hi"}}}));
  return Read(true, more).value();
}

}  // namespace quartet

// Tokenizers with the chat templates of tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/civil_time.h"
#include "core/base/testing/scratch_folder.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {

// The text that ends a turn of this chat template: the first of these that it has; else the eos token, "<|end|>".
inline std::string EndOfTurns(std::string_view source) {
  for (const char* end : {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end_of_text|>"}) {
    if (source.find(end) != std::string_view::npos) return end;
  }
  return "<|end|>";
}

// The tokenizer core/tokenizer/testdata/byte_level, whose token 2 is "<|end|>", with this chat template, the end of its
// turns as a special token, and the day that it writes.
inline std::unique_ptr<Tokenizer> TemplateTokenizer(const std::string& source,
                                                    absl::CivilDay date = absl::CivilDay(2026, 1, 2)) {
  const ScratchFolder folder;
  std::ifstream base("core/tokenizer/testdata/byte_level/tokenizer.json");
  nlohmann::ordered_json tokenizer = nlohmann::ordered_json::parse(base);
  nlohmann::ordered_json end = tokenizer["added_tokens"][2];
  if (end["content"] != EndOfTurns(source)) {
    end.update({{"id", 402}, {"content", EndOfTurns(source)}});
    tokenizer["added_tokens"].push_back(end);
  }
  folder.Write("tokenizer.json", tokenizer.dump());
  std::filesystem::copy_file("core/tokenizer/testdata/byte_level/tokenizer_config.json",
                             folder.path() + "/tokenizer_config.json");
  return Tokenizer::Load(folder.path(), {.file = folder.Write("chat.jinja", source), .date = date}).value();
}

// Of templates whose turns end with "<|end|>".
inline const std::vector<int32_t> kTemplateEnds = {2};

}  // namespace quartet

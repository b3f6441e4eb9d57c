// Models with chat templates of known families, for tests: templates in the shape of Qwen3's, Mistral 7B v0.3's and
// Llama 3.1's, over a tokenizer of bytes that has their marks as tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/openai/openai_request.h"
#include "core/tokenizer/tokenizer.h"
#include "gtest/gtest.h"

namespace quartet {

// `family`: "qwen", "mistral", "llama3", with <|end|> for the end of a turn. `marks`: tokens beside those of bytes,
// special or not. `more`: stands behind the template.
inline std::unique_ptr<Tokenizer> LoadChatModel(const std::string& family, const std::vector<std::string>& marks = {},
                                                bool special = true, const std::string& more = "") {
  const std::string folder = testing::TempDir() + "/chat_model";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ifstream base("core/tokenizer/testdata/byte_level/tokenizer.json");
  nlohmann::ordered_json tokenizer = nlohmann::ordered_json::parse(base);
  int id = 402;
  for (const std::string& mark : marks) {
    tokenizer["added_tokens"].push_back({{"id", id++},
                                         {"content", mark},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", special}});
  }
  std::ofstream(folder + "/tokenizer.json") << tokenizer;
  std::ofstream(folder + "/tokenizer_config.json") << R"({"bos_token": "<|start|>", "eos_token": "<|end|>"})";
  std::ifstream source("core/openai/testdata/" + family + ".jinja");
  std::ofstream(folder + "/chat_template.jinja") << source.rdbuf() << more;
  return Tokenizer::Load(folder).value();
}

inline ServedModel ServedChatModel(const Tokenizer& tokenizer) {
  return {.name = "tiny",
          .tokenizer = &tokenizer,
          .vocab_size = tokenizer.vocab_size(),
          .max_model_len = 4096,
          .max_sequences = 100};
}

}  // namespace quartet

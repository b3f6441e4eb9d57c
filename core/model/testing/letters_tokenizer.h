// A tokenizer for tests of which only its number of token ids matters.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace quartet {

// Writes a tokenizer.json of `size` tokens, "a0", "a1" and so on, and what transformers needs beside it, into `folder`.
inline void WriteLettersTokenizer(const std::string& folder, int size) {
  nlohmann::json vocab;
  for (int id = 0; id < size; ++id) vocab["a" + std::to_string(id)] = id;
  const nlohmann::json tokenizer = {{"version", "1.0"},
                                    {"added_tokens", nlohmann::json::array()},
                                    {"normalizer", nullptr},
                                    {"pre_tokenizer", nullptr},
                                    {"post_processor", nullptr},
                                    {"decoder", {{"type", "Fuse"}}},
                                    {"model",
                                     {{"type", "BPE"},
                                      {"dropout", nullptr},
                                      {"unk_token", nullptr},
                                      {"continuing_subword_prefix", nullptr},
                                      {"end_of_word_suffix", nullptr},
                                      {"fuse_unk", false},
                                      {"byte_fallback", false},
                                      {"ignore_merges", false},
                                      {"vocab", vocab},
                                      {"merges", nlohmann::json::array()}}}};
  std::ofstream(folder + "/tokenizer.json") << tokenizer;
  std::ofstream(folder + "/tokenizer_config.json") << R"({"tokenizer_class": "PreTrainedTokenizerFast"})";
}

}  // namespace quartet

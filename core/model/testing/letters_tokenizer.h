// Tokenizers for tests.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace quartet {

// Writes a tokenizer.json of the tokens of `vocab` with their ids, and what transformers needs beside it, into
// `folder`. A text is the tokens of its characters; those that `special` names, which `vocab` has, too, are found in it
// before.
inline void WriteLettersTokenizer(const std::string& folder, const nlohmann::json& vocab,
                                  const std::vector<std::string>& special = {}) {
  nlohmann::json added = nlohmann::json::array();
  for (const std::string& token : special) {
    added.push_back({{"id", vocab.at(token)},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const nlohmann::json tokenizer = {{"version", "1.0"},
                                    {"truncation", nullptr},
                                    {"padding", nullptr},
                                    {"added_tokens", added},
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
  // The class that a model's type would stand for may add a beginning of its own.
  std::ofstream(folder + "/tokenizer_config.json") << R"({"tokenizer_class": "PreTrainedTokenizerFast"})";
}

// One of which only its number of tokens, "a0", "a1" and so on, matters.
inline void WriteLettersTokenizer(const std::string& folder, int size) {
  nlohmann::json vocab;
  for (int id = 0; id < size; ++id) vocab["a" + std::to_string(id)] = id;
  WriteLettersTokenizer(folder, vocab);
}

}  // namespace quartet

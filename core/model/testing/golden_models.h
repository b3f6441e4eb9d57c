// The models of core/model/testdata, with a vocabulary head, that tests of every family take.
#pragma once

#include <string>

namespace quartet {

inline const std::string kGoldenModels[] = {
    "llama", "llama_tied_llama3_rope", "llama_biases", "qwen2", "qwen3", "mistral", "granite", "olmo2"};

}  // namespace quartet

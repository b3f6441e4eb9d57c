// Checks of model folders before anything is loaded. LibTorch-free.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/model/model_config.h"

namespace quartet {

// INVALID_ARGUMENT where `folder` has a tokenizer.json with token ids that the folder's own model, `config`, does not
// have: names both sizes. A folder without a tokenizer is in order.
absl::Status CheckTokenizerFits(const std::string& folder, const ModelConfig& config);

// INVALID_ARGUMENT where two models that read the same token ids have vocabularies of different sizes, or tokenizers
// that differ; names both folders, and the sizes or the difference. `role` is what `folder` is for: "reference model".
absl::Status CheckSameVocabulary(const std::string& role, const std::string& folder, const ModelConfig& config,
                                 const std::string& actor_folder, const ModelConfig& actor_config);

}  // namespace quartet

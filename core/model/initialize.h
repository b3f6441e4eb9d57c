// New models: a Hugging Face folder with random weights. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/model/model_config.h"
#include "core/safetensors/reader.h"

namespace quartet {

// Writes config.json and model.safetensors to `folder` (made if missing): matrices drawn from
// N(0, config.initializer_range), norms 1, biases 0, as transformers initialises them. Each value depends on `seed`,
// the tensor's name and its position alone, so the files are the same everywhere. `dtype` is kF32 or kBF16. Tokenizer
// files are the caller's. Streams: memory does not grow with the model.
absl::Status WriteRandomModel(const ModelConfig& config, HeadKind head, uint64_t seed, Dtype dtype,
                              const std::string& folder);

}  // namespace quartet

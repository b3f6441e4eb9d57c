// What the models that are made from nothing have in common.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/model/model_config.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The ids of the first two special tokens of each.
inline constexpr int32_t kTinyPad = 0;
inline constexpr int32_t kTinyEos = 1;

// A decoder of 4 blocks, 64 wide; about 168,000 parameters.
ModelConfig TinyDecoder(int64_t vocab_size);

// tokenizer.json with a token a character. Ids count from 0: `special` tokens, then `characters` as byte-level
// tokenizers write them.
std::string CharacterTokenizerJson(const std::vector<std::string>& special, const std::vector<std::string>& characters);

// tokenizer_config.json of a tokenizer whose first special tokens are <pad> and <eos>. `chat_template` may be "".
std::string TinyTokenizerConfigJson(const std::string& chat_template);

// A Hugging Face folder with random weights, which follow from the seed.
absl::Status WriteTinyModelFolder(const std::string& folder, const ModelConfig& config, uint64_t seed,
                                  const std::string& tokenizer, const std::string& tokenizer_config);

// A free port of loopback, two ranks with a thread each.
void ConfigureTinyService(ServicePlacement* placement);
// What trainers of such a model have in common.
void ConfigureTinyTrainer(TrainerConfig* trainer, const std::string& model);

}  // namespace quartet

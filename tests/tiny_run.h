// A run so small that it starts in seconds: a random two-block model with a tokenizer of single characters, a few
// prompts, a configuration.
#pragma once

#include <string>
#include <vector>

#include "core/model/model_config.h"
#include "tests/process_harness.h"

namespace quartet {

// The characters that the tiny tokenizer knows; ids follow <pad> = 0, <s> = 1, </s> = 2.
inline constexpr char kTinyAlphabet[] = "0123456789+= abcdefghijklmnopqrstuvwxyz";

ModelConfig TinyModelConfig();

// Writes a Hugging Face folder into the harness's scratch folder, with a model of TinyModelConfig and the tokenizer,
// and returns its path. `extra_tokens` are added to the tokenizer alone.
std::string WriteTinyModel(const ProcessHarness& harness, const std::string& name, int extra_tokens = 0);

// Writes `prompts` and a configuration for PPO on them, four services with `ranks` ranks each on free ports, and
// returns the configuration's path. `more` is appended to the text, and so overrides single fields.
struct TinyRun {
  std::string config;   // path
  std::string run_dir;  // what the run writes
};
TinyRun WriteTinyRun(const ProcessHarness& harness, const std::string& model, int ranks, const std::string& more = "");

}  // namespace quartet

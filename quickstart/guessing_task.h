// The quickstart of agents: a model from nothing plays a guessing game with a program.
//
// The program (examples/agents/guessing_game.cc) thinks of a number from 1 to 7; the model guesses four times and is
// told whether it is less or more. Halving always finds it. The model begins with random weights and is told by its
// reward alone.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct GuessingTaskFiles {
  std::string model;  // Hugging Face folder with random weights, the game's tokenizer and chat template
  std::string train;  // JSONL of {"prompt", "label"}: the number
  std::string heldout;
};

// Makes `folder` and writes all files into it.
absl::Status WriteGuessingTask(const std::string& folder, uint64_t seed, GuessingTaskFiles* files);

// Not resolved yet. `agent`: a command line.
RunConfig GuessingConfig(const GuessingTaskFiles& files, const std::string& agent, const std::string& run_dir,
                         uint64_t seed);

}  // namespace quartet

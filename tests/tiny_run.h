// A run so small that it starts in seconds: a random two-block model with a tokenizer of single characters, a few
// prompts, a configuration.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/model/model_config.h"
#include "tests/process_harness.h"

namespace quartet {

inline constexpr char kOrchestrator[] = "orchestrator/orchestrator";

// The characters that the tiny tokenizer knows; ids follow <pad> = 0, <s> = 1, </s> = 2.
inline constexpr char kTinyAlphabet[] = "0123456789+= abcdefghijklmnopqrstuvwxyz";

ModelConfig TinyModelConfig();

// Writes a Hugging Face folder into the harness's scratch folder, with a model of TinyModelConfig and the tokenizer,
// and returns its path. `extra_tokens` are added to the tokenizer alone.
std::string WriteTinyModel(const ProcessHarness& harness, const std::string& name, int extra_tokens = 0);

// A rollout by itself of the model in the folder `model`, in fp32: sequences of up to 256 tokens, a cache of 4 MiB a
// rank, a free port. `overrides` are fields.
ProcessHarness::Service StartRollout(ProcessHarness& harness, const std::string& model,
                                     const std::vector<std::string>& overrides = {});

// A configuration for PPO, as a user would give it: a file and overrides.
struct TinyRun {
  std::string config;                  // path
  std::string run_dir;                 // what the run writes
  std::vector<std::string> arguments;  // --config and the overrides as --set
};

// Writes 40 prompts (prompts.jsonl) and a configuration of three steps on them, with four services on free ports and
// `ranks` ranks each.
TinyRun WriteTinyRun(const ProcessHarness& harness, const std::string& model, int ranks,
                     const std::vector<std::string>& overrides = {});

// For what is about ranks that belong together, of which one service is enough: an override where all others have one.
inline constexpr char kTwoPolicyRanks[] = "services.policy_trainer.ranks=2";

// The four services of a run, started by hand.
struct ServicesByHand {
  std::map<std::string, ProcessHarness::Service> services;

  // Tells an orchestrator where they listen.
  std::vector<std::string> arguments() const;
};
// Starts them beside each other, and expects that all come up. `arguments` are those of a run.
ServicesByHand StartServices(ProcessHarness& harness, const std::vector<std::string>& arguments);

// The whole lines of a JSONL file, which may be growing: what comes after the last newline is still being written. None
// where there is no file.
std::vector<nlohmann::json> ReadRecords(const std::string& path);

// Waits until `path` has `count` whole lines, and returns them; fewer where the process `pid` ends or `timeout` passes
// before that.
std::vector<nlohmann::json> WaitForRecords(ProcessHarness& harness, pid_t pid, const std::string& path, size_t count,
                                           absl::Duration timeout);

// `run` and `expected` are the same metrics but for rounding. What is near 0 by itself is held by its error alone.
void ExpectSameMetrics(const nlohmann::json& run, const nlohmann::json& expected, double relative);

}  // namespace quartet

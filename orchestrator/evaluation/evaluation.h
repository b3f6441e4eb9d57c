// How good the policy's answers to held-out prompts are.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/clients/service_clients.h"
#include "orchestrator/data/prompts.h"
#include "orchestrator/run_folder/metrics.h"
#include "orchestrator/run_folder/run_folder.h"
#include "orchestrator/terminal/terminal_view.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct EvaluationSet {
  EvalSet options;
  std::vector<PromptRecord> prompts;
  std::string description;  // how many there are, and what was left out
};

// The sets of config.eval(); none where it names no data.
absl::StatusOr<std::vector<EvaluationSet>> LoadEvaluationSets(const RunConfig& config, const Tokenizer& tokenizer);

// One answer of an evaluation.
struct EvaluatedAnswer {
  int64_t prompt = 0;  // of the set
  std::string response;
  std::string error;  // why it could not be scored; "": it was
  double reward = 0;
  std::optional<bool> right;  // nothing: no source tells
  bool truncated = false;
  int64_t tokens = 0;
};

struct EvaluationResult {
  std::string set;
  int64_t prompts = 0;  // those in the values: all of whose answers could be scored
  // By name: where a source of the reward tells right from wrong, pass@k and, above 1, maj@k; then reward and
  // response_length (means over all answers), truncated (share); with reward.on_error "drop"
  // failed, the answers that could not be scored. The same as source/<source>/... of prompts of each
  // source, where the set has several.
  Metrics values;
  std::vector<EvaluatedAnswer> answers;  // by prompt

  std::optional<double> pass_at_1() const { return values.Get("pass@1"); }
};

// options.n_samples_per_prompt answers a prompt, by `policy_version`, scored by the scorer. An answer is right where
// each source that tells so holds it for right. The seed is the same each time: a change of a figure is a change of the
// policy. A prompt with an answer that could not be scored (reward.on_error "drop") is left out of the values;
// UNAVAILABLE where that is every prompt.
absl::StatusOr<EvaluationResult> Evaluate(const RunConfig& config, const EvaluationSet& set, uint64_t policy_version,
                                          const Tokenizer& tokenizer, const Services& services,
                                          const ProgressFunction& progress);

// Evaluates each set after `step` (-1: before training), shows it, and writes it to `folder`.
absl::StatusOr<std::vector<EvaluationResult>> EvaluateSets(const RunConfig& config,
                                                           const std::vector<EvaluationSet>& sets, int64_t step,
                                                           uint64_t policy_version, const Tokenizer& tokenizer,
                                                           const Services& services, RunFolder& folder,
                                                           TerminalView& view);

// "gsm8k: pass@1 52.3 %, reward 0.5230, 187 tokens; 1319 prompts".
std::string DescribeEvaluation(const EvaluationResult& result);

// JSON, a line a prompt: {"prompt", "label", "source", "answers": [{"response", "reward", "right", "truncated",
// "tokens"}]}; with "error" in place of reward and right where an answer could not be scored, without "right" where no
// source tells.
std::string AnswerLines(const EvaluationSet& set, const EvaluationResult& result);

// "eval/<set>/<name>" of each value.
void AddEvaluationMetrics(const EvaluationResult& result, Metrics* metrics);
}  // namespace quartet

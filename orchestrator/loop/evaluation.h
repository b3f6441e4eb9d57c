// How often the policy's answers to the held-out prompts are right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/clients/service_clients.h"
#include "orchestrator/loop/prompts.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct EvaluationSet {
  std::string name;  // of the file, without folder and extension
  std::vector<PromptRecord> prompts;
};

// The prompts of config.eval(); nothing where it names no data.
absl::StatusOr<std::optional<EvaluationSet>> LoadEvaluationSet(const RunConfig& config, const Tokenizer& tokenizer);

struct EvaluationResult {
  // Share of answers that every configured rule holds for right; where only reward models are configured, nothing.
  std::optional<double> pass_at_1;
  double mean_reward = 0;
};

// One answer a prompt, by `policy_version`, at config.eval().temperature() (greedy by default), scored by the scorer.
absl::StatusOr<EvaluationResult> Evaluate(const RunConfig& config, const EvaluationSet& set, uint64_t policy_version,
                                          const Tokenizer& tokenizer, Services& services,
                                          const ProgressFunction& progress);

// The answer as rules and people read it: the action tokens, decoded without special tokens.
std::string DecodeResponse(const TokenSequence& tokens, const Tokenizer& tokenizer);

// Whether any source of the reward is a rule, which needs labels.
bool HasRules(const RewardConfig& reward);

}  // namespace quartet

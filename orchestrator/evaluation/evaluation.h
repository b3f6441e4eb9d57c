// How good the policy's answers to held-out prompts are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clients/service_clients.h"
#include "core/config/run_config.h"
#include "core/run_folder/records/metrics.h"
#include "core/run_folder/run_folder.h"
#include "core/run_folder/run_inputs.h"
#include "core/terminal/terminal_view.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/answers/answer_source.h"
#include "orchestrator/data/prompts.h"
#include "orchestrator/evaluation/evaluated_model.h"
#include "orchestrator/session/run_session.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct EvaluationSet {
  EvalSet options;
  std::vector<PromptRecord> prompts;
  std::string description;           // how many there are, and what was left out
  std::vector<RunInput> files = {};  // its file
};

// The sets of config.eval(); none where it names no data. `progress` is told of the rows of each set.
absl::StatusOr<std::vector<EvaluationSet>> LoadEvaluationSets(const RunConfig& config, const Tokenizer& tokenizer,
                                                              const RowProgress& progress = nullptr);

// Of the largest set: its answers, which are asked for at once.
int64_t MostSequences(const std::vector<EvaluationSet>& sets);

// One answer of an evaluation.
struct EvaluatedAnswer {
  int64_t prompt = 0;  // of the set
  std::string response;
  std::string conversation;  // PromptAnswer
  std::string error;         // why it could not be scored; "": it was
  double reward = 0;
  std::map<std::string, float> parts;  // what each source, and an agent, says
  std::optional<bool> right;           // nothing: no source tells
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

// What evaluations work with. Nothing is owned.
struct EvaluationRun {
  const RunConfig& config;  // resolved
  const Tokenizer& tokenizer;
  AnswerSource& answers;
  ScorerClient& scorer;
  RunFolder& folder;
  TerminalView& view;
  Program program;  // that evaluates, which warnings are of
};

// Evaluates each set, shows the figures of `model`, and writes them to `folder`. Of each set
// options.n_samples_per_prompt answers a prompt, by `policy_version`, scored by the scorer. An answer is right where
// each source that tells so holds it for right. The seed is the same each time: a change of a figure is a change of the
// policy. A prompt with an answer that could not be scored (reward.on_error "drop") is left out of the values;
// UNAVAILABLE where that is every prompt.
absl::StatusOr<std::vector<EvaluationResult>> EvaluateSets(const EvaluationRun& run,
                                                           const std::vector<EvaluationSet>& sets,
                                                           const EvaluatedModel& model, uint64_t policy_version);

// "eval/<set>/<name>" of each value.
void AddEvaluationMetrics(const EvaluationResult& result, Metrics* metrics);

// INVALID_ARGUMENT names a field that --set gives and that has no say in `evaluate`: run_dir, which --output says, and
// the model where --model says it; without that the actor's, whose tokenizer alone is used, beside a rollout.pretrain
// of the configuration's file.
absl::Status CheckSetByFlags(const ValueOrigins& origins, bool has_model);

// The error of an evaluation, with the flags in place of the fields that they set: --output, and where the model is
// that of --model, this.
absl::Status NamingFlags(bool has_model, const absl::Status& error);

// Of a session of Program::kEvaluate: evaluates the model rollout.pretrain on the sets of eval, with rollout and scorer
// alone. run_dir keeps what a run's would of it, and answers_<set>.jsonl: of each prompt its text, label and source,
// and its answers with their rewards, of episodes of an agent with their messages.
absl::Status EvaluateModel(RunSession session);

}  // namespace quartet

// The PPO loop.
//
// One step: prompts -> generate -> score, reference log-probabilities, values and policy log-probabilities side by side
// -> KL, rewards, advantages -> policy and critic updates side by side -> weight sync -> record. Formulas:
// docs/algorithms.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clients/service_clients.h"
#include "core/run_folder/checkpoints/checkpoint_record.h"
#include "core/run_folder/run_folder.h"
#include "core/terminal/terminal_view.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/answers/answer_source.h"
#include "orchestrator/data/prompts.h"
#include "orchestrator/evaluation/evaluation.h"
#include "orchestrator/loop/experience/advantage_program.h"
#include "orchestrator/upgrades/upgrades.h"
#include "proto/run_config.pb.h"

namespace quartet {

// What the loop works with. Nothing is owned.
struct PpoRun {
  const RunConfig& config;  // resolved
  const Tokenizer& tokenizer;
  Prompts& prompts;
  const std::vector<EvaluationSet>& evaluation_sets;
  Services& services;
  AnswerSource& answers;
  RunFolder& folder;
  TerminalView& view;
  // Where the run goes on after a checkpoint, of which CheckGoesOn holds: the trainers have loaded its states.
  std::optional<CheckpointRecord> resume = std::nullopt;
  // Of advantage_estimator "command"; null of the others.
  AdvantageProgram* advantages = nullptr;
  // Asked between steps: why the run is to end, with a checkpoint; OK: it goes on.
  std::function<absl::Status()> ending = [] { return absl::OkStatus(); };
  // Whether the checkpoint by which `ending` ends it can be continued from, also without train.save_optimizer.
  bool ends_continuable = false;
  // Called once the services have accepted the run and its folder has begun, with the steps that it makes in all.
  std::function<void(int64_t steps)> begun = {};
  // What starts the services and ends them, where they are to be replaced by it, and who is told where they are then.
  ServiceStarter* starter = nullptr;
  std::function<void(const std::string& service, const std::string& address)> on_moved = {};
  // What `ending` is of, which gives up evaluations. Null: they are not, and the run takes no requests.
  Cancellation* cancellation = nullptr;
};

struct PpoSummary {
  int64_t steps = 0;                            // those before a restart included
  std::vector<double> mean_rewards;             // of each step that was made here; none where !HasRewards
  std::vector<EvaluationResult> before, after;  // one a set, if they were made here
  std::string checkpoint;                       // folder of the last one, relative to the run folder
};

// Runs all steps. The first failure of a call, a reply that is not whole, or a difference of the trainer's and the
// rollout's log-probabilities above train.max_log_prob_diff_mean ends the run with an error. Samples are demanded of
// exactly the policy version that the step before trained: weights that did not arrive are an error, too.
//
// A run that `ending` ends has a checkpoint of its last step, and that error. An evaluation that was due after the
// step, or was being made, is made by the run that goes on.
absl::StatusOr<PpoSummary> RunPpo(const PpoRun& run);

// Prompts that a run over `prompts` prompts draws at least: the passes of train.num_episodes. Without an end where
// train.max_steps is set.
int64_t PromptsToDraw(const RunConfig& config, int64_t prompts);

// Its steps: train.max_steps; or what train.num_episodes comes to, less where dynamic sampling draws anew.
int64_t PpoSteps(const RunConfig& config, int64_t prompts);

}  // namespace quartet

// Supervised fine-tuning on prompts and answers, as a loss of the policy trainer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/clients/service_clients.h"
#include "orchestrator/data/sft_examples.h"
#include "orchestrator/run_folder/run_folder.h"
#include "orchestrator/terminal/terminal_view.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// What fine-tuning works with. Nothing is owned.
struct SftRun {
  const RunConfig& config;  // resolved
  const Tokenizer& tokenizer;
  SftExamples& examples;
  PolicyTrainerClient& policy_trainer;
  RunFolder& folder;
  TerminalView& view;
};

struct SftSummary {
  int64_t steps = 0;
  std::string checkpoint;  // folder, relative to the run folder
};

// All optimizer steps, then a checkpoint. The loss is the mean over the tokens of each batch; the schedule is that of
// the actor with sft.learning_rate as its peak.
absl::StatusOr<SftSummary> RunSft(const SftRun& run);

}  // namespace quartet

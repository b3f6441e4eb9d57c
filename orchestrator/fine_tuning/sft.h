// Supervised fine-tuning on prompts and answers, as a loss of the policy trainer.
#pragma once

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/clients/service_clients.h"
#include "orchestrator/data/sft_examples.h"
#include "orchestrator/fine_tuning/offline_loop.h"
#include "orchestrator/run_folder/run_folder.h"
#include "orchestrator/terminal/terminal_view.h"
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
  std::optional<CheckpointRecord> resume = {};  // as OfflineRun's
};

// The loss is the mean over the tokens of each batch.
absl::StatusOr<OfflineSummary> RunSft(const SftRun& run);

}  // namespace quartet

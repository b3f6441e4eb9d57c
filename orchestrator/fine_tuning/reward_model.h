// Training a reward model on pairs of answers, by the critic trainer.
#pragma once

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/clients/service_clients.h"
#include "orchestrator/data/preference_pairs.h"
#include "orchestrator/fine_tuning/offline_loop.h"
#include "orchestrator/run_folder/run_folder.h"
#include "orchestrator/terminal/terminal_view.h"
#include "proto/run_config.pb.h"

namespace quartet {

// What it works with. Nothing is owned.
struct RewardModelRun {
  const RunConfig& config;  // resolved
  const Tokenizer& tokenizer;
  PreferencePairs& pairs;
  PreferencePairs* held_out;  // may be null
  CriticTrainerClient& critic_trainer;
  RunFolder& folder;
  TerminalView& view;
  std::optional<CheckpointRecord> resume = {};  // as OfflineRun's
};

// The loss is the mean over the pairs of each batch of -log sigmoid(r_chosen - r_rejected - margin), r being the scalar
// head at a sequence's last token.
absl::StatusOr<OfflineSummary> RunRewardModel(const RewardModelRun& run);

}  // namespace quartet

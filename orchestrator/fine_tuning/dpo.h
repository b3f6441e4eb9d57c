// Direct preference optimization: the policy learns from pairs of answers, held near a frozen reference.
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
struct DpoRun {
  const RunConfig& config;  // resolved
  const Tokenizer& tokenizer;
  PreferencePairs& pairs;
  PreferencePairs* held_out;  // may be null
  PolicyTrainerClient& policy_trainer;
  ScorerClient& scorer;  // of the reference's log-probabilities
  RunFolder& folder;
  TerminalView& view;
  std::optional<CheckpointRecord> resume = {};  // as OfflineRun's
};

// The loss is the mean over the pairs of each batch: Rafailov et al. 2023; with preference.loss "ipo" that of Azar et
// al. 2023, of log-probabilities' means over tokens.
absl::StatusOr<OfflineSummary> RunDpo(const DpoRun& run);

}  // namespace quartet

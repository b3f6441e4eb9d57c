// Supervised fine-tuning on prompts and answers, as a loss of the policy trainer.
#pragma once

#include "absl/status/statusor.h"
#include "core/clients/service_clients.h"
#include "orchestrator/data/sft_examples.h"
#include "orchestrator/offline/offline_loop.h"

namespace quartet {

// The loss is the mean over the tokens of each batch.
absl::StatusOr<OfflineSummary> RunSft(const OfflineRun& run, SftExamples& examples,
                                      PolicyTrainerClient& policy_trainer);

}  // namespace quartet

// What is recorded and shown of a PPO step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/clients/service_clients.h"
#include "core/run_folder/records/metrics.h"
#include "core/run_folder/run_folder.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/data/prompts.h"
#include "orchestrator/loop/experience/experience.h"

namespace quartet {

// Peak memory by service and category, the largest over its ranks, and the figures that services give of themselves.
absl::Status AddServiceMetrics(Services& services, Metrics* metrics);

// A few answers to different prompts, from the whole batch; with their rewards where they have some. Those of several
// turns or sequences have these, cut to about 64 KiB a sample.
std::vector<SampleRecord> PickSamples(int64_t step, const std::vector<Experience>& batch, bool has_rewards,
                                      const Tokenizer& tokenizer);

// Where the prompts of the run are from several sources: of each that the batch has, source/<name>/reward
// (where answers have rewards), response_length (means) and share (of the batch's answers).
void AddSourceMetrics(const std::vector<Experience>& batch, size_t sources, bool has_rewards, Metrics* metrics);

// The table in the terminal: its head, and a step's line, with `left` behind it.
std::string StepTableHead();
std::string StepTableLine(int64_t steps_done, const Metrics& metrics, const std::string& left);

}  // namespace quartet

// A whole run, from a resolved configuration to its result: folder, services, loop. What the programs share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/clients/cancellation.h"
#include "orchestrator/loop/ppo.h"
#include "orchestrator/session/session_parts.h"
#include "orchestrator/terminal/terminal_view.h"
#include "proto/common.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The services that an evaluation drives.
inline const std::vector<std::string> kEvaluationServices = {"rollout", "scorer"};

struct PpoResult {
  PpoSummary summary;
  // What each service said of itself at the end, by its name.
  std::map<std::string, ServiceInfo> services;
};

// What they read is read, and what services will load is looked at, before run_dir is made or any service started:
// INVALID_ARGUMENT. Where a service ended by itself
// the error says so, with the end of its log, whatever call failed because of it. No service that was started here is
// left when these return.
absl::StatusOr<PpoResult> RunPpoSession(const RunConfig& config, const SessionOptions& options, TerminalView& view,
                                        Cancellation& cancellation);

// Evaluates the model config.rollout().pretrain() on the sets of config.eval(), with rollout and scorer alone; `step`
// is that after which it was trained (-1: none). run_dir keeps what a run's would of it, and answers_<set>.jsonl: of
// each prompt its text, label and source, and its answers with their rewards.
absl::StatusOr<std::vector<EvaluationResult>> RunEvaluationSession(const RunConfig& config, int64_t step,
                                                                   const SessionOptions& options, TerminalView& view,
                                                                   Cancellation& cancellation);

}  // namespace quartet

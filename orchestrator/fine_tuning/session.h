// A whole run of a method that learns from rows alone, from a resolved configuration to a model's folder.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/config/run_config.h"
#include "orchestrator/clients/cancellation.h"
#include "orchestrator/session/session_parts.h"
#include "orchestrator/terminal/terminal_view.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Of Program::kSft, kDpo or kRewardModel. What it reads is read, and what services will load is looked at, before
// run_dir is made or any service started: INVALID_ARGUMENT. Where a service ended by itself the error says so. No
// service that was started here is left when it returns. Returns the model's folder, relative to the run folder.
absl::StatusOr<std::string> RunOfflineSession(Program program, const RunConfig& config, const SessionOptions& options,
                                              TerminalView& view, Cancellation& cancellation);

}  // namespace quartet

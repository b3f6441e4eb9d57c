// Looks at the hosts of a run and the links between them before any model is loaded.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/clients/cancellation.h"
#include "orchestrator/preflight/findings.h"
#include "orchestrator/terminal/terminal_view.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Asks `services`, which were started with --check and listen where `config` says, for all that FindProblems looks at;
// each is waited for while it starts. UNAVAILABLE names a service, or a rank, that cannot be reached, and from where.
absl::StatusOr<PreflightFacts> AskForFacts(const RunConfig& config, const std::vector<std::string>& services,
                                           TerminalView& view, Cancellation& cancellation);

// Of this host alone, without asking anybody.
std::vector<Finding> FindProblemsHere(const RunConfig& config);

// Prints hosts, rates and problems. FAILED_PRECONDITION counts the fatal ones, where there are any.
absl::Status ReportPreflight(const RunConfig& config, const PreflightFacts& facts, TerminalView& view);

}  // namespace quartet

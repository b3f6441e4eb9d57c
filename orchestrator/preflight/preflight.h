// Looks at the hosts of a run and the links between them before any model is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/cancellation/cancellation.h"
#include "core/terminal/terminal_view.h"
#include "orchestrator/preflight/findings.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Asks `services`, which were started with --check and listen where `config` says, for all that FindProblems looks at;
// each is waited for while it starts. UNAVAILABLE names a service, or a rank, that cannot be reached, and from where.
absl::StatusOr<PreflightFacts> AskForFacts(const RunConfig& config, const std::vector<std::string>& services,
                                           TerminalView& view, Cancellation& cancellation);

// What a checkpoint that the trainers among `services` save takes, about: their models' files, and with
// train.save_optimizer 12 bytes a parameter of master weights and optimizer. A model whose config.json cannot be read
// counts nothing.
int64_t CheckpointBytes(const RunConfig& config, const std::vector<std::string>& services);

// Of this host alone, without asking anybody, for a run of `services`.
std::vector<Finding> FindProblemsHere(const RunConfig& config, const std::vector<std::string>& services);

// Prints hosts, rates and problems. FAILED_PRECONDITION counts the fatal ones, where there are any.
absl::Status ReportPreflight(const RunConfig& config, const PreflightFacts& facts, TerminalView& view);

}  // namespace quartet

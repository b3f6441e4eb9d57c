// Programs that execute a run, from their command line to their exit code.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/cancellation/cancellation.h"
#include "core/command_line/command_line.h"
#include "core/config/run_config.h"
#include "core/terminal/terminal_view.h"
#include "orchestrator/session/run_session.h"

namespace quartet {

// Reads the command line, then does `body`, which SIGINT, SIGTERM and SIGHUP cancel, with a view on `out`. Returns the
// exit code: that of Finish, or, where a signal has cancelled it, InterruptWatch's.
int RunProgram(int argc, char** argv, const CommandLine& line,
               const std::function<absl::Status(TerminalView&, Cancellation&)>& body, std::FILE* out = stdout);

// runs/<program>-<time> in the folder that the user is in: where a run goes whose folder is not named.
std::string NewRunDir(const std::string& program);

// A program that trains by a configuration: the flags of all of these.
struct TrainingProgram {
  Program program;      // kPpo, which has presets, kSft, kDpo or kRewardModel
  std::string summary;  // of --help: what it does
  std::string example;  // of --set
};

// RunProgram with the configuration that preset, file and --set make. `train` returns the last checkpoint, relative to
// the run folder.
int RunTraining(int argc, char** argv, const TrainingProgram& program,
                const std::function<absl::StatusOr<std::string>(RunSession)>& train);

}  // namespace quartet

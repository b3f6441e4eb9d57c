// The command that continues a run.
#pragma once

#include <string>

namespace quartet {

// A line for the shell and the folder that the program was called from: the program's own arguments, with the run's
// folder and train.load_checkpoint. Under `bazel run` it is one of `bazelw run`, of the target `label`.
std::string ContinueCommand(int argc, const char* const* argv, const std::string& label, const std::string& run_dir);

}  // namespace quartet

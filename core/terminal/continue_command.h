// The command that continues a run.
#pragma once

#include <string>

namespace quartet {

// `word` as one word of a shell.
std::string ShellWord(const std::string& word);

// What runs the target `label`, whose program is the file `program`, from the folder that this program was called from:
// under `bazel run` bazelw with the label, else the file. Arguments may follow.
std::string RunCommand(const std::string& label, const std::string& program);

// A line for the shell and the folder that the program was called from: the program's own arguments, with the run's
// folder and train.load_checkpoint. Under `bazel run` it is one of `bazelw run`, of the target `label`.
std::string ContinueCommand(int argc, const char* const* argv, const std::string& label, const std::string& run_dir);

}  // namespace quartet

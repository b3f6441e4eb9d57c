// What people should know of a run, where they look for it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/run_folder/run_folder.h"
#include "core/terminal/terminal_view.h"

namespace quartet {

// Shows the warning, and writes it to the run's events as one of the program `from`. `step` and errors as of
// RunFolder::WriteEvent.
inline absl::Status ShowWarning(TerminalView& view, RunFolder& folder, int64_t step, const std::string& from,
                                const std::string& warning) {
  view.Print("warning: " + warning);
  return folder.WriteEvent("warning", step, from, warning);
}

}  // namespace quartet

// The services of a run on this host, from its configuration alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/cancellation/cancellation.h"
#include "core/terminal/terminal_view.h"
#include "orchestrator/launch/service_launcher.h"
#include "proto/run_config.pb.h"

namespace quartet {

// What ServiceLauncherOptions have, of the programs that this one comes with and by the plan of MakeLaunchPlan, within
// CUDA_VISIBLE_DEVICES where that is set.
struct LaunchHereOptions {
  std::vector<std::string> services;
  std::string config_path;  // where the configuration is written to
  std::string logs_folder;
  std::vector<std::string> arguments = {};
  std::string trace = "";
};

// Returns once all are SERVING; `config` says then where they listen. How many are up is shown as `phase`. Errors as of
// ServiceLauncher::Start, or the file cannot be written.
absl::StatusOr<std::unique_ptr<ServiceLauncher>> LaunchHere(const LaunchHereOptions& options, const std::string& phase,
                                                            RunConfig* config, TerminalView& view,
                                                            Cancellation& cancellation);

}  // namespace quartet

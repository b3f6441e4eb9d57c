#include "orchestrator/launch/launch_here.h"

#include <cstdlib>
#include <utility>

#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/config/run_config.h"
#include "core/config/services.h"
#include "core/hardware/cuda_driver.h"
#include "core/hardware/topology.h"
#include "orchestrator/launch/launch_plan.h"

namespace quartet {

absl::StatusOr<std::unique_ptr<ServiceLauncher>> LaunchHere(const LaunchHereOptions& options, const std::string& phase,
                                                            RunConfig* config, TerminalView& view,
                                                            Cancellation& cancellation) {
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(options.config_path, PrintRunConfig(*config)));
  const std::string programs = ServiceLauncher::DefaultProgramsFolder();
  const HostTopology topology = ReadTopology();
  QUARTET_ASSIGN_OR_RETURN(std::vector<RankLaunch> plan, MakeLaunchPlan(*config, options.services, topology, programs,
                                                                        {"--config=" + options.config_path}));
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    WithinVisibleGpus(visible, VisibleGpus(), topology, &plan);
  }
  view.Begin(phase, static_cast<int64_t>(options.services.size()));
  absl::StatusOr<std::unique_ptr<ServiceLauncher>> launcher = ServiceLauncher::Start(
      {.services = options.services,
       .programs_folder = programs,
       .plan = std::move(plan),
       .config_path = options.config_path,
       .logs_folder = options.logs_folder,
       .arguments = options.arguments,
       .trace = options.trace,
       .cancellation = &cancellation,
       .on_loading = [&view](int64_t up, const std::string& loading) { view.Progress(up, loading); }});
  view.End();
  QUARTET_RETURN_IF_ERROR(launcher.status());
  for (const auto& [service, address] : (*launcher)->addresses()) {
    MutablePlacementOf(config, service)->set_listen(address);
  }
  return launcher;
}

}  // namespace quartet

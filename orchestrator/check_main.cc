// Looks at the hosts and links that a run will use, before any model is loaded.
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/config/origins/origins.h"
#include "core/config/services.h"
#include "core/hardware/cuda_driver.h"
#include "core/hardware/topology.h"
#include "orchestrator/launch/launch_plan.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/preflight/preflight.h"
#include "orchestrator/session/run_program.h"

namespace quartet {
namespace {

struct CheckFlags {
  ConfigSources sources;
  bool services_run = false;
};

// A folder of this check alone.
class Workspace {
 public:
  Workspace() {
    std::string path = (std::filesystem::temp_directory_path() / "quartet_check_XXXXXX").string();
    path_ = mkdtemp(path.data()) == nullptr ? "" : path;
  }
  ~Workspace() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// All of them on this host, without models, for as long as what is returned lives.
absl::StatusOr<std::unique_ptr<ServiceLauncher>> StartHere(const std::string& folder,
                                                           const std::vector<std::string>& services, RunConfig* config,
                                                           TerminalView& view, Cancellation& cancellation) {
  const std::string config_path = folder + "/check.textproto", programs = ServiceLauncher::DefaultProgramsFolder();
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(config_path, PrintRunConfig(*config)));
  const HostTopology topology = ReadTopology();
  QUARTET_ASSIGN_OR_RETURN(std::vector<RankLaunch> plan,
                           MakeLaunchPlan(*config, services, topology, programs, {"--config=" + config_path}));
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    WithinVisibleGpus(visible, VisibleGpus(), topology, &plan);
  }
  view.Begin("starting services without models", static_cast<int64_t>(services.size()));
  absl::StatusOr<std::unique_ptr<ServiceLauncher>> launcher = ServiceLauncher::Start(
      {.services = services,
       .programs_folder = programs,
       .plan = std::move(plan),
       .config_path = config_path,
       .logs_folder = folder,
       .arguments = {"--check"},
       .cancellation = &cancellation,
       .on_loading = [&view](int64_t up, const std::string& loading) { view.Progress(up, loading); }});
  view.End();
  QUARTET_RETURN_IF_ERROR(launcher.status());
  for (const auto& [service, address] : (*launcher)->addresses()) {
    MutablePlacementOf(config, service)->set_listen(address);
  }
  return launcher;
}

absl::Status Check(const CheckFlags& flags, TerminalView& view, Cancellation& cancellation) {
  QUARTET_ASSIGN_OR_RETURN(RunConfig config, LoadRunConfig(flags.sources, ""));
  const std::vector<std::string> services = ServicesOf(flags.sources.program, config);
  const Workspace workspace;
  std::unique_ptr<ServiceLauncher> launcher;
  if (flags.services_run) {
    for (const std::string& service : services) {
      const std::string& listen = PlacementOf(config, service).listen();
      if (absl::EndsWith(listen, ":0")) {
        return absl::InvalidArgumentError(
            absl::StrCat("services.", service, ".listen is \"", listen,
                         "\"; with --services_run it is the address and port at which the ", service, " listens"));
      }
    }
  } else {
    if (config.cluster().num_nodes() > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cluster.num_nodes is ", config.cluster().num_nodes(),
          ", and this starts all on one host. A cluster is checked where its engine starts the services: "
          "quartet launch --engine=slurm|ray --check=only, or start them with --check on their hosts, then "
          "quartet check --services_run"));
    }
    QUARTET_ASSIGN_OR_RETURN(config, LoadRunConfig(flags.sources, "", ServiceLauncher::Defaults(services)));
    if (workspace.path().empty()) return absl::UnavailableError("cannot make a folder for temporary files (TMPDIR)");
    QUARTET_ASSIGN_OR_RETURN(launcher, StartHere(workspace.path(), services, &config, view, cancellation));
  }
  QUARTET_ASSIGN_OR_RETURN(const PreflightFacts facts, AskForFacts(config, services, view, cancellation));
  return ReportPreflight(config, facts, view);
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  quartet::CheckFlags flags;
  const quartet::CommandLine line = {
      .program = "check",
      .before =
          "check: looks at the hosts of a run and at the links between them, before any model is loaded.\n\n"
          "Usage: check --config=FILE [flags]\n\nFlags:\n",
      .flags = {{"preset", "NAME", "As the orchestrator's.", quartet::Text(&flags.sources.preset)},
                {"config", "FILE", "The run's configuration.", quartet::Text(&flags.sources.file)},
                {"set", "PATH=VALUE", "Overrides one field. May be repeated.",
                 quartet::Texts(&flags.sources.overrides)},
                {"program", "NAME", "The run: ppo (default), sft, dpo or reward_model.",
                 quartet::OneOf(quartet::kRunPrograms, &flags.sources.program)},
                {"services_run", "",
                 "The services run already, each started with --check, at services.*.listen. Without it they are\n"
                 "started on this host.",
                 quartet::Switch(&flags.services_run)}},
      .after =
          "\nExit codes: 0 where the run can begin, with warnings or without; 1 where something is in its way; 2 for "
          "a wrong\nconfiguration; 130, 143 or 129 after SIGINT, SIGTERM or SIGHUP.\n"};
  return quartet::RunProgram(argc, argv, line, [&](quartet::TerminalView& view, quartet::Cancellation& cancellation) {
    return quartet::Check(flags, view, cancellation);
  });
}

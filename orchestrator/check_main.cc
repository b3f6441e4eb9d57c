// Looks at the hosts and links that a run will use, before any model is loaded.
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/origins/origins.h"
#include "core/config/services.h"
#include "orchestrator/launch/launch_here.h"
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
    QUARTET_ASSIGN_OR_RETURN(launcher, LaunchHere({.services = services,
                                                   .config_path = workspace.path() + "/check.textproto",
                                                   .logs_folder = workspace.path(),
                                                   .arguments = {"--check"}},
                                                  "starting services without models", &config, view, cancellation));
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

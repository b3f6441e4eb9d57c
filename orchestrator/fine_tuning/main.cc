#include "orchestrator/fine_tuning/main.h"

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/files.h"
#include "core/base/logging.h"
#include "core/config/origins/origins.h"
#include "orchestrator/clients/cancellation.h"
#include "orchestrator/fine_tuning/session.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/terminal/command_line.h"
#include "orchestrator/terminal/continue_command.h"
#include "orchestrator/terminal/interrupt_watch.h"
#include "orchestrator/terminal/terminal_view.h"

namespace quartet {
namespace {

std::vector<FlagSpec> FlagsOf(const FineTuningProgram& program) {
  const std::vector<std::string>& services = ServicesOf(program.program);
  std::vector<std::string> listen;
  for (const std::string& service : services) listen.push_back(absl::StrCat("services.", service, ".listen"));
  return {
      {"config", "FILE", "The run's configuration, a RunConfig in protobuf text format (below)."},
      {"set", "PATH=VALUE",
       absl::StrCat("Overrides one field, for example --set=", program.example, ". May be repeated."), true},
      {"launch", "",
       absl::StrCat("Start what it drives (", absl::StrJoin(services, ", "),
                    ") on this machine. Without it that runs already at ", absl::StrJoin(listen, ", "), ".")},
      {"trace", "FILE",
       "With --launch: each rank of each service writes what it does when, for chrome://tracing or ui.perfetto.dev, "
       "beside FILE, with .<service>.rankN before its extension."}};
}

}  // namespace

int FineTuningMain(int argc, char** argv, const FineTuningProgram& program) {
  const std::string& name = program.name;
  InitLogging(argv[0], name, -1);
  const std::vector<FlagSpec> specs = FlagsOf(program);
  absl::StatusOr<CommandLine> flags = CommandLine::Parse(argc, argv, specs);
  if (!flags.ok()) return Finish(name, flags.status());
  if (flags->help()) {
    std::printf(
        "%s: %s\n\nUsage: %s --config=FILE [flags]\n\nFlags:\n%s\n"
        "Exit codes: 0; 1 where the run failed; 2 for a wrong configuration or wrong data; 130 after SIGINT or "
        "SIGTERM.\n\nThe configuration, with every field and its default:\n\n%s\n",
        name.c_str(), program.summary.c_str(), name.c_str(), CommandLine::Describe(specs).c_str(),
        std::string(DescribeRunConfig()).c_str());
    return 0;
  }
  if (flags->Has("trace") && !flags->Has("launch")) {
    return Finish(name, absl::InvalidArgumentError("--trace has an effect with --launch only; services that run "
                                                   "already trace with a --trace of their own"));
  }
  const ConfigSources sources = {.file = flags->Get("config").value_or(""), .overrides = flags->GetAll("set")};
  const absl::StatusOr<RunConfig> config = LoadRunConfig(
      sources, "", flags->Has("launch") ? ServiceLauncher::Defaults(ServicesOf(program.program)) : RunConfig());
  if (!config.ok()) return Finish(name, config.status());
  const absl::StatusOr<ValueOrigins> origins = OriginsOf(sources);
  if (!origins.ok()) return Finish(name, origins.status());
  if (!flags->Has("launch")) {
    if (absl::Status said = CheckSaysRunDir(*origins); !said.ok()) return Finish(name, said);
  }

  Cancellation cancellation;
  InterruptWatch interrupts(&cancellation);
  TerminalView view(stdout, TerminalView::IsTerminal(stdout));
  const absl::StatusOr<OfflineSummary> summary =
      RunOfflineSession(program.program, *config,
                        {.launch = flags->Has("launch"),
                         .programs_folder = ServiceLauncher::DefaultProgramsFolder(),
                         .trace = ResolveUserPath(flags->Get("trace").value_or("")),
                         .origins = *origins,
                         .continue_command = ContinueCommand(argc, argv, "//orchestrator:" + name, config->run_dir())},
                        view, cancellation);
  if (!summary.ok()) return Finish(name, summary.status());
  view.Print(absl::StrCat("done: ", config->run_dir(), "/", summary->checkpoint));
  return 0;
}

}  // namespace quartet

// The orchestrator: PPO over the four services.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/files.h"
#include "core/base/logging.h"
#include "core/config/origins/origins.h"
#include "core/config/origins/presets.h"
#include "core/config/run_config.h"
#include "orchestrator/clients/cancellation.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/loop/session.h"
#include "orchestrator/terminal/command_line.h"
#include "orchestrator/terminal/continue_command.h"
#include "orchestrator/terminal/interrupt_watch.h"
#include "orchestrator/terminal/terminal_view.h"

namespace quartet {
namespace {

const std::vector<FlagSpec>& Flags() {
  static const std::vector<FlagSpec> flags = {
      {"preset", "NAME", "A method by its name (below): what it sets, --config and --set go over."},
      {"config", "FILE", "The run's configuration, a RunConfig in protobuf text format (below)."},
      {"set", "PATH=VALUE", "Overrides one field, for example --set=train.max_steps=20. May be repeated.", true},
      {"launch", "", "Start the four services on this machine. Without it they run already at services.*.listen."},
      {"trace", "FILE",
       "With --launch: each rank of each service writes what it does when, for chrome://tracing or ui.perfetto.dev, "
       "beside FILE, with .<service>.rankN before its extension."},
  };
  return flags;
}

int Main(int argc, char** argv) {
  InitLogging(argv[0], "orchestrator", -1);
  absl::StatusOr<CommandLine> flags = CommandLine::Parse(argc, argv, Flags());
  if (!flags.ok()) return Finish("orchestrator", flags.status());
  if (flags->help()) {
    std::printf(
        "orchestrator: trains a policy with PPO, driving rollout, policy_trainer, critic_trainer and scorer.\n\n"
        "Usage: orchestrator --config=FILE [flags]\n\nFlags:\n%s\n"
        "Exit codes: 0; 1 where the run failed; 2 for a wrong configuration or wrong data; 130 after SIGINT or "
        "SIGTERM.\n\nPresets, which are the files of presets/:\n%s\n"
        "The configuration, with every field and its default:\n\n%s\n",
        CommandLine::Describe(Flags()).c_str(), DescribePresets().c_str(), std::string(DescribeRunConfig()).c_str());
    return 0;
  }
  if (flags->Has("trace") && !flags->Has("launch")) {
    return Finish("orchestrator",
                  absl::InvalidArgumentError("--trace has an effect with --launch only; services that run "
                                             "already trace with a --trace of their own"));
  }
  const ConfigSources sources = {flags->Get("preset").value_or(""), flags->Get("config").value_or(""),
                                 flags->GetAll("set")};
  absl::StatusOr<RunConfig> config = LoadRunConfig(sources, "");
  if (!config.ok()) return Finish("orchestrator", config.status());
  // Where services listen that are started here depends on which there are.
  if (flags->Has("launch")) config = LoadRunConfig(sources, "", ServiceLauncher::Defaults(PpoServices(*config)));
  if (!config.ok()) return Finish("orchestrator", config.status());
  const absl::StatusOr<ValueOrigins> origins = OriginsOf(sources);
  if (!origins.ok()) return Finish("orchestrator", origins.status());
  if (!flags->Has("launch")) {
    if (absl::Status said = CheckSaysRunDir(*origins); !said.ok()) return Finish("orchestrator", said);
  }

  Cancellation cancellation;
  InterruptWatch interrupts(&cancellation);
  TerminalView view(stdout, TerminalView::IsTerminal(stdout));
  const absl::StatusOr<std::vector<std::string>> aside = LeftAside(sources);
  if (!aside.ok()) return Finish("orchestrator", aside.status());
  if (!aside->empty()) {
    view.Print(absl::StrCat("preset ", sources.preset, " has no critic: left aside ", absl::StrJoin(*aside, ", "),
                            " of ", sources.file));
  }
  const absl::StatusOr<PpoResult> result =
      RunPpoSession(*config,
                    {.launch = flags->Has("launch"),
                     .programs_folder = ServiceLauncher::DefaultProgramsFolder(),
                     .trace = ResolveUserPath(flags->Get("trace").value_or("")),
                     .origins = *origins,
                     .continue_command = ContinueCommand(argc, argv, "//orchestrator", config->run_dir())},
                    view, cancellation);
  if (!result.ok()) return Finish("orchestrator", result.status());
  view.Print("done: " + config->run_dir() + "/" + result->summary.checkpoint);
  return 0;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }

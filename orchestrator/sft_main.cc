// Supervised fine-tuning through the policy trainer.
#include <cstdio>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/base/logging.h"
#include "core/config/origins.h"
#include "core/config/run_config.h"
#include "orchestrator/clients/cancellation.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/loop/session.h"
#include "orchestrator/terminal/command_line.h"
#include "orchestrator/terminal/interrupt_watch.h"
#include "orchestrator/terminal/terminal_view.h"

namespace quartet {
namespace {

const std::vector<FlagSpec>& Flags() {
  static const std::vector<FlagSpec> flags = {
      {"config", "FILE", "The run's configuration, a RunConfig in protobuf text format (below)."},
      {"set", "PATH=VALUE", "Overrides one field, for example --set=sft.max_steps=100. May be repeated.", true},
      {"launch", "",
       "Start the policy trainer on this machine. Without it it runs already at services.policy_trainer.listen."},
      {"trace", "FILE",
       "With --launch: each rank of each service writes what it does when, for chrome://tracing or ui.perfetto.dev, "
       "beside FILE, with .<service>.rankN before its extension."},
  };
  return flags;
}

int Main(int argc, char** argv) {
  InitLogging(argv[0], "sft", -1);
  absl::StatusOr<CommandLine> flags = CommandLine::Parse(argc, argv, Flags());
  if (!flags.ok()) return Finish("sft", flags.status());
  if (flags->help()) {
    std::printf(
        "sft: fine-tunes the policy on prompts and responses (sft {...}), driving policy_trainer.\n\n"
        "Usage: sft --config=FILE [flags]\n\nFlags:\n%s\n"
        "Exit codes: 0; 1 where the run failed; 2 for a wrong configuration or wrong data; 130 after SIGINT or "
        "SIGTERM.\n\nThe configuration, with every field and its default:\n\n%s\n",
        CommandLine::Describe(Flags()).c_str(), std::string(DescribeRunConfig()).c_str());
    return 0;
  }
  if (flags->Has("trace") && !flags->Has("launch")) {
    return Finish("sft", absl::InvalidArgumentError("--trace has an effect with --launch only; services that run "
                                                    "already trace with a --trace of their own"));
  }
  const ConfigSources sources = {.file = flags->Get("config").value_or(""), .overrides = flags->GetAll("set")};
  const absl::StatusOr<RunConfig> config =
      LoadRunConfig(sources, "", flags->Has("launch") ? ServiceLauncher::Defaults(kSftServices) : RunConfig());
  if (!config.ok()) return Finish("sft", config.status());
  const absl::StatusOr<ValueOrigins> origins = OriginsOf(sources);
  if (!origins.ok()) return Finish("sft", origins.status());
  if (!flags->Has("launch")) {
    if (absl::Status said = CheckSaysRunDir(*origins); !said.ok()) return Finish("sft", said);
  }

  Cancellation cancellation;
  InterruptWatch interrupts(&cancellation);
  TerminalView view(stdout, TerminalView::IsTerminal(stdout));
  const absl::StatusOr<SftSummary> summary = RunSftSession(*config,
                                                           {.launch = flags->Has("launch"),
                                                            .programs_folder = ServiceLauncher::DefaultProgramsFolder(),
                                                            .trace = ResolveUserPath(flags->Get("trace").value_or("")),
                                                            .origins = *origins},
                                                           view, cancellation);
  if (!summary.ok()) return Finish("sft", summary.status());
  view.Print("done: " + config->run_dir() + "/" + summary->checkpoint);
  return 0;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }

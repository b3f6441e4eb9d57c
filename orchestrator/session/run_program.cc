#include "orchestrator/session/run_program.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/files/files.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/config/help.h"
#include "core/config/origins/origins.h"
#include "core/config/origins/presets.h"
#include "core/errors/exceptions.h"
#include "core/terminal/continue_command.h"
#include "core/terminal/interrupt_watch.h"
#include "orchestrator/launch/service_launcher.h"

namespace quartet {
namespace {

// What the command line of a program that trains says.
struct TrainingFlags {
  ConfigSources sources;
  bool launch = false;
  std::string trace;
  std::string page;
};

std::string LaunchHelp(Program program) {
  if (program == Program::kPpo) {
    return "Start the four services on this machine. Without it they run already at services.*.listen.";
  }
  const std::vector<std::string> services = ServicesOf(program, RunConfig());
  std::vector<std::string> listen;
  for (const std::string& service : services) listen.push_back(absl::StrCat("services.", service, ".listen"));
  return absl::StrCat("Start what it drives (", absl::StrJoin(services, ", "),
                      ") on this machine. Without it that runs already at ", absl::StrJoin(listen, ", "), ".");
}

CommandLine TrainingCommandLine(const TrainingProgram& program, TrainingFlags* flags) {
  const bool has_presets = program.program == Program::kPpo;
  const std::string name = ExecutableName(program.program);
  CommandLine line = {
      .program = name,
      .before = absl::StrCat(name, ": ", program.summary, "\n\nUsage: ", name, " --config=FILE [flags]\n\nFlags:\n"),
      .flags =
          {{"config", "FILE", "The run's configuration, a RunConfig in protobuf text format (below).",
            Text(&flags->sources.file)},
           {"set", "PATH=VALUE",
            absl::StrCat("Overrides one field, for example --set=", program.example,
                         "; an empty VALUE unsets it. May be repeated."),
            Texts(&flags->sources.overrides)},
           {"launch", "", LaunchHelp(program.program), Switch(&flags->launch)},
           {"page", "HOST:PORT",
            "Serve the run's page and its figures for Prometheus there, as --set=monitor.listen=HOST:PORT; port 0 is a "
            "free one.",
            Text(&flags->page)},
           {"trace", "FILE",
            "With --launch: each rank of each service writes what it does when, for chrome://tracing or "
            "ui.perfetto.dev, beside FILE, with .<service>.rankN before its extension.",
            UserPath(&flags->trace)}},
      .after = absl::StrCat("\nExit codes: 0; 1 where the run failed; 2 for a wrong configuration or wrong data; 130, "
                            "143 or 129 after SIGINT,\nSIGTERM or SIGHUP.\n\n",
                            has_presets ? "Presets, which are the files of presets/:\n" + DescribePresets() + "\n" : "",
                            "The configuration, with every field and its default:\n\n",
                            DescribeRunConfig(program.program), "\n"),
      .check = [flags] {
        if (flags->trace.empty() || flags->launch) return absl::OkStatus();
        return absl::InvalidArgumentError(
            "--trace has an effect with --launch only; services that run already trace with a --trace of their own");
      }};
  if (has_presets) {
    line.flags.insert(line.flags.begin(),
                      {"preset", "NAME", "A method by its name (below): what it sets, --config and --set go over.",
                       Text(&flags->sources.preset)});
  }
  return line;
}

}  // namespace

int RunProgram(int argc, char** argv, const CommandLine& line,
               const std::function<absl::Status(TerminalView&, Cancellation&)>& body, std::FILE* out) {
  InitLogging(argv[0], line.program, -1);
  if (const std::optional<int> code = ReadCommandLine(argc, argv, line)) return *code;
  Cancellation cancellation;
  InterruptWatch interrupts(&cancellation);
  TerminalView view(out, TerminalView::IsTerminal(out));
  const absl::Status status = CatchAll([&] { return body(view, cancellation); });
  const int code = Finish(line.program, status);
  // Who has started this program learns by which signal it was told to end.
  return absl::IsCancelled(status) && interrupts.exit_code() != 0 ? interrupts.exit_code() : code;
}

std::string NewRunDir(const std::string& program) {
  return ResolveUserPath(
      absl::StrCat("runs/", program, "-", absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone())));
}

int RunTraining(int argc, char** argv, const TrainingProgram& program,
                const std::function<absl::StatusOr<std::string>(RunSession)>& train) {
  TrainingFlags flags;
  const auto body = [&](TerminalView& view, Cancellation& cancellation) -> absl::Status {
    ConfigSources& sources = flags.sources;
    sources.program = program.program;
    if (!flags.page.empty()) sources.overrides.push_back("monitor.listen=" + flags.page);
    QUARTET_ASSIGN_OR_RETURN(RunConfig config, LoadRunConfig(sources, ""));
    if (flags.launch) {
      // Where services listen that are started here depends on which there are.
      QUARTET_ASSIGN_OR_RETURN(
          config, LoadRunConfig(sources, "", ServiceLauncher::Defaults(ServicesOf(program.program, config))));
    }
    RunOptions options = {.launch = flags.launch, .trace = flags.trace};
    QUARTET_ASSIGN_OR_RETURN(options.origins, OriginsOf(sources));
    if (!flags.launch) QUARTET_RETURN_IF_ERROR(CheckSaysRunDir(options.origins));
    QUARTET_ASSIGN_OR_RETURN(const std::string aside, DescribeLeftAside(sources));
    if (!aside.empty()) view.Print(aside);
    const std::string label =
        program.program == Program::kPpo ? "//orchestrator" : "//orchestrator:" + ExecutableName(program.program);
    options.continue_command = ContinueCommand(argc, argv, label, config.run_dir());
    QUARTET_ASSIGN_OR_RETURN(const std::string checkpoint,
                             train(RunSession(program.program, config, options, view, cancellation)));
    view.Print(absl::StrCat("done: ", config.run_dir(), "/", checkpoint));
    return absl::OkStatus();
  };
  return RunProgram(argc, argv, TrainingCommandLine(program, &flags), body);
}

}  // namespace quartet

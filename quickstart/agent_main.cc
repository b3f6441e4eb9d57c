// From nothing to a model that plays a game of several turns with a program: an agent is trained.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/config/field_paths.h"
#include "core/config/run_config.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/loop/train.h"
#include "orchestrator/session/run_program.h"
#include "quickstart/guessing_task.h"

namespace quartet {
namespace {

struct Options {
  uint64_t seed = 42;
  std::string run_dir = NewRunDir("agent");
  std::string page;
};

CommandLine AgentCommandLine(Options* options) {
  return {.program = "agent",
          .before =
              "agent: makes a tiny model, and trains it with a program that plays a guessing game with it.\n\n"
              "Usage: agent [flags]\n\nFlags:\n",
          .flags = {{"seed", "N", "Seed of model, sampling and shuffling. Default 42.",
                     AtLeast(uint64_t{0}, &options->seed)},
                    {"run_dir", "FOLDER", "Where everything is written; new or empty. Default runs/agent-<time>.",
                     UserPath(&options->run_dir)},
                    {"page", "HOST:PORT", "Serve the run's page there; port 0 is a free one.", Text(&options->page)}},
          .after =
              "\nExit codes: 0; 1 where the run failed; 2 for wrong flags; 130, 143 or 129 after SIGINT, SIGTERM "
              "or SIGHUP.\n"};
}

absl::Status Run(const Options& options, TerminalView& view, Cancellation& cancellation) {
  const std::string start = options.run_dir + "/start";
  QUARTET_RETURN_IF_ERROR(RunFolder::CheckFree(options.run_dir, ""));
  view.Print("1. The game, a tokenizer and a random model");
  GuessingTaskFiles files;
  QUARTET_RETURN_IF_ERROR(WriteGuessingTask(start, options.seed, &files));
  const std::string agent = ServiceLauncher::DefaultProgramsFolder() + "/examples/agents/guessing_game";
  RunConfig config = GuessingConfig(files, agent, options.run_dir, options.seed);
  config.mutable_monitor()->set_listen(options.page);
  ValueOrigins origins;
  for (const auto& [path, value] : FlatFields(config)) origins[path] = "agent";
  QUARTET_RETURN_IF_ERROR(ResolveRunConfig(&config, ""));
  view.Print("2. Training, while it plays with the program");
  QUARTET_ASSIGN_OR_RETURN(
      const PpoResult result,
      TrainByPpo(RunSession(Program::kPpo, config, {.launch = true, .allowed_entry = "start", .origins = origins}, view,
                            cancellation)));
  view.Print(absl::StrFormat("numbers found: %.1f %% before, %.1f %% after",
                             100 * result.summary.before.at(0).pass_at_1().value_or(0),
                             100 * result.summary.after.at(0).pass_at_1().value_or(0)));
  return absl::OkStatus();
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  quartet::Options options;
  return quartet::RunProgram(argc, argv, quartet::AgentCommandLine(&options),
                             [&](auto& view, auto& cancellation) { return quartet::Run(options, view, cancellation); });
}

// Evaluates a model, or a checkpoint of a run, on held-out prompts.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/files.h"
#include "core/base/logging.h"
#include "core/config/run_config.h"
#include "orchestrator/checks/input_check.h"
#include "orchestrator/clients/cancellation.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/loop/session.h"
#include "orchestrator/terminal/command_line.h"
#include "orchestrator/terminal/interrupt_watch.h"
#include "orchestrator/terminal/terminal_view.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

const std::vector<FlagSpec>& Flags() {
  static const std::vector<FlagSpec> flags = {
      {"config", "FILE",
       "A RunConfig in protobuf text format (below), such as run.textproto of a run: its eval, data, rollout and "
       "reward."},
      {"set", "PATH=VALUE", "Overrides one field, for example --set=eval.data=test.jsonl. May be repeated.", true},
      {"model", "DIR",
       "What is evaluated: a Hugging Face folder, or a checkpoint of a run (RUN/checkpoints/step_N), whose policy is "
       "taken. Default: rollout.pretrain (or actor.pretrain)."},
      {"output", "DIR", "Where results go, a folder that does not exist. Default: runs/evaluation-<time>."},
      {"launch", "",
       "Start rollout and scorer on this machine. Without it they run already at services.<name>.listen."},
  };
  return flags;
}

// The step after which the checkpoint that the folder is, or is in, was made; -1 where it is none.
int64_t StepOf(const fs::path& folder) {
  for (const fs::path& part : folder) {
    const std::string name = part.string();
    absl::string_view number = name;
    int64_t steps = 0;
    if (absl::ConsumePrefix(&number, "step_") && absl::SimpleAtoi(number, &steps) && steps > 0) return steps - 1;
  }
  return -1;
}

int Main(int argc, char** argv) {
  InitLogging(argv[0], "evaluate", -1);
  absl::StatusOr<CommandLine> flags = CommandLine::Parse(argc, argv, Flags());
  if (!flags.ok()) return Finish("evaluate", flags.status());
  if (flags->help()) {
    std::printf(
        "evaluate: answers held-out prompts (eval {...}) and scores the answers, driving rollout and scorer.\n\n"
        "Usage: evaluate --config=FILE [flags]\n\nFlags:\n%s\n"
        "Exit codes: 0; 1 where the evaluation failed; 2 for a wrong configuration or wrong data; 130 after SIGINT or "
        "SIGTERM.\n\nThe configuration, with every field and its default:\n\n%s\n",
        CommandLine::Describe(Flags()).c_str(), std::string(DescribeRunConfig()).c_str());
    return 0;
  }
  std::vector<std::string> overrides = flags->GetAll("set");
  std::string model = ResolveUserPath(flags->Get("model").value_or(""));
  if (!model.empty()) {
    std::error_code ignored;
    if (fs::exists(model + "/policy", ignored)) model += "/policy";
    if (absl::Status s = CheckModelFolder("--model", model); !s.ok()) return Finish("evaluate", s);
    overrides.push_back("rollout.pretrain=" + model);
    overrides.push_back("actor.pretrain=" + model);  // whose tokenizer is used
  }
  const bool launch = flags->Has("launch");
  absl::StatusOr<RunConfig> config =
      LoadRunConfig(flags->Get("config").value_or(""), overrides, "",
                    launch ? ServiceLauncher::Defaults(kEvaluationServices) : RunConfig());
  if (!config.ok()) return Finish("evaluate", config.status());
  const std::string output = flags->Get("output").value_or(
      absl::StrCat("runs/evaluation-", absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone())));
  config->set_run_dir(ResolveUserPath(output));

  Cancellation cancellation;
  InterruptWatch interrupts(&cancellation);
  TerminalView view(stdout, TerminalView::IsTerminal(stdout));
  const absl::StatusOr<std::vector<EvaluationResult>> results = RunEvaluationSession(
      *config, StepOf(config->rollout().pretrain()),
      {.launch = launch, .programs_folder = ServiceLauncher::DefaultProgramsFolder()}, view, cancellation);
  if (!results.ok()) return Finish("evaluate", results.status());
  view.Print("done: " + config->run_dir() + "/evaluations.jsonl");
  return 0;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }

// Evaluates a model, or a checkpoint of a run, on held-out prompts.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/help.h"
#include "core/config/origins/origins.h"
#include "core/config/run_config.h"
#include "orchestrator/checks/input_check.h"
#include "orchestrator/evaluation/evaluation.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/session/run_program.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

struct Options {
  ConfigSources sources;
  std::string model;
  std::string output = NewRunDir("evaluation");
  bool launch = false;
};

CommandLine EvaluateCommandLine(Options* options) {
  return {
      .program = "evaluate",
      .before =
          "evaluate: answers held-out prompts (eval {...}) and scores the answers, driving rollout and scorer.\n\n"
          "Usage: evaluate --config=FILE [flags]\n\nFlags:\n",
      .flags = {{"config", "FILE",
                 "A RunConfig in protobuf text format (below), such as run.textproto of a run: its eval, data, rollout "
                 "and reward.",
                 Text(&options->sources.file)},
                {"set", "PATH=VALUE", "Overrides one field, for example --set=eval.data=test.jsonl. May be repeated.",
                 Texts(&options->sources.overrides)},
                {"model", "DIR",
                 "What is evaluated: a Hugging Face folder, or a checkpoint of a run (RUN/checkpoints/step_N, or "
                 "latest), whose "
                 "policy is taken. Default: rollout.pretrain (or actor.pretrain).",
                 UserPath(&options->model)},
                {"output", "DIR", "Where results go, a folder that does not exist. Default: runs/evaluation-<time>.",
                 UserPath(&options->output)},
                {"launch", "",
                 "Start rollout and scorer on this machine. Without it they run already at services.<name>.listen.",
                 Switch(&options->launch)}},
      .after =
          absl::StrCat("\nExit codes: 0; 1 where the evaluation failed; 2 for a wrong configuration or wrong data; "
                       "130, 143 or 129 after SIGINT, SIGTERM or SIGHUP.\n\nThe configuration, with every field and "
                       "its default:\n\n",
                       DescribeRunConfig(Program::kEvaluate), "\n")};
}

absl::Status Run(Options& options, TerminalView& view, Cancellation& cancellation) {
  options.sources.program = Program::kEvaluate;
  QUARTET_ASSIGN_OR_RETURN(ValueOrigins origins, OriginsOf(options.sources));
  QUARTET_RETURN_IF_ERROR(CheckSetByFlags(origins, !options.model.empty()));
  if (!options.model.empty()) {
    std::error_code ignored;
    if (fs::exists(options.model + "/policy", ignored)) options.model += "/policy";
    QUARTET_RETURN_IF_ERROR(CheckModelFolder("--model", options.model));
    // A run may move its link `latest` while this goes on.
    if (const fs::path real = fs::canonical(options.model, ignored); !ignored) options.model = real.string();
    options.sources.overrides.push_back("rollout.pretrain=" + options.model);
    options.sources.overrides.push_back("actor.pretrain=" + options.model);  // whose tokenizer is used
  }
  QUARTET_ASSIGN_OR_RETURN(
      RunConfig config,
      LoadRunConfig(
          options.sources, "",
          options.launch ? ServiceLauncher::Defaults(ServicesOf(Program::kEvaluate, RunConfig())) : RunConfig()));
  config.set_run_dir(options.output);
  origins["run_dir"] = "--output";
  if (!options.model.empty()) origins["rollout.pretrain"] = origins["actor.pretrain"] = "--model";
  const absl::Status evaluated = EvaluateModel(
      RunSession(Program::kEvaluate, config, {.launch = options.launch, .origins = origins}, view, cancellation));
  QUARTET_RETURN_IF_ERROR(NamingFlags(!options.model.empty(), evaluated));
  view.Print("done: " + config.run_dir() + "/evaluations.jsonl");
  return absl::OkStatus();
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  quartet::Options options;
  return quartet::RunProgram(argc, argv, quartet::EvaluateCommandLine(&options),
                             [&](auto& view, auto& cancellation) { return quartet::Run(options, view, cancellation); });
}

#include "orchestrator/fine_tuning/session.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/config/batches/micro_batches.h"
#include "core/config/origins/origins.h"
#include "core/model/model_config.h"
#include "orchestrator/checks/input_check.h"
#include "orchestrator/clients/service_clients.h"
#include "orchestrator/data/dataset_options.h"
#include "orchestrator/data/first_example.h"
#include "orchestrator/data/preference_pairs.h"
#include "orchestrator/data/sft_examples.h"
#include "orchestrator/fine_tuning/dpo.h"
#include "orchestrator/fine_tuning/reward_model.h"
#include "orchestrator/fine_tuning/sft.h"
#include "orchestrator/run_folder/run_start.h"

namespace quartet {
namespace {

std::string ModelOf(Program program) { return program == Program::kRewardModel ? "critic" : "actor"; }

// What a run reads before anything of it is made or started: examples, or pairs.
struct Inputs {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<SftExamples> examples;
  std::unique_ptr<PreferencePairs> pairs;
  std::unique_ptr<PreferencePairs> held_out;  // null where preference.eval_data names no files
};

absl::StatusOr<Inputs> ReadInputs(const RunConfig& config, Program program, bool launch, TerminalView& view) {
  QUARTET_RETURN_IF_ERROR(CheckFor(config, program));
  QUARTET_RETURN_IF_ERROR(CheckInputs(config, ServicesOf(program, config), launch));
  const std::string model = ModelOf(program);
  Inputs inputs;
  QUARTET_ASSIGN_OR_RETURN(inputs.tokenizer, LoadTokenizer(config, model));
  QUARTET_ASSIGN_OR_RETURN(const ModelConfig read, ReadModelConfig(TrainerOf(config, model).pretrain()));
  const std::vector<int64_t>& ends = read.eos_token_ids;
  if (program == Program::kSft) {
    QUARTET_ASSIGN_OR_RETURN(inputs.examples, OpenSftExamples(config, *inputs.tokenizer, ends, ShowChecking(view)));
  } else {
    const auto open = [&](bool held_out) {
      return OpenPreferencePairs(config, held_out, model, *inputs.tokenizer, ends, ShowChecking(view));
    };
    QUARTET_ASSIGN_OR_RETURN(inputs.pairs, open(/*held_out=*/false));
    if (!config.preference().eval_data().empty()) {
      QUARTET_ASSIGN_OR_RETURN(inputs.held_out, open(/*held_out=*/true));
    }
  }
  view.End();
  return inputs;
}

void ShowInputs(const Inputs& inputs, TerminalView& view) {
  if (inputs.examples != nullptr) {
    view.Print(absl::StrCat("examples: ", DescribeRows("an epoch", inputs.examples->rows())));
    view.Print(DescribeExample(inputs.examples->first(), *inputs.tokenizer));
    return;
  }
  view.Print(absl::StrCat("pairs: ", DescribeRows("an epoch", inputs.pairs->rows())));
  if (inputs.held_out != nullptr) {
    view.Print(absl::StrCat("held-out pairs: ", DescribeRows("in all", inputs.held_out->rows())));
  }
  const PreferencePair& first = inputs.pairs->first();
  view.Print(DescribePair(first.chosen, first.rejected, *inputs.tokenizer));
}

absl::StatusOr<OfflineSummary> RunLoop(Program program, const RunConfig& config, const Inputs& inputs,
                                       const RunStart& start, TerminalView& view, Cancellation& cancellation) {
  RunFolder& folder = *start.folder;
  if (program == Program::kRewardModel) {
    QUARTET_ASSIGN_OR_RETURN(const auto critic_trainer, ConnectCriticTrainer(config, &cancellation));
    return RunRewardModel({.config = config,
                           .tokenizer = *inputs.tokenizer,
                           .pairs = *inputs.pairs,
                           .held_out = inputs.held_out.get(),
                           .critic_trainer = *critic_trainer,
                           .folder = folder,
                           .view = view,
                           .resume = start.resume});
  }
  QUARTET_ASSIGN_OR_RETURN(const auto policy_trainer, ConnectPolicyTrainer(config, &cancellation));
  if (program == Program::kSft) {
    return RunSft({.config = config,
                   .tokenizer = *inputs.tokenizer,
                   .examples = *inputs.examples,
                   .policy_trainer = *policy_trainer,
                   .folder = folder,
                   .view = view,
                   .resume = start.resume});
  }
  QUARTET_ASSIGN_OR_RETURN(const auto scorer, ConnectScorer(config, &cancellation));
  return RunDpo({.config = config,
                 .tokenizer = *inputs.tokenizer,
                 .pairs = *inputs.pairs,
                 .held_out = inputs.held_out.get(),
                 .policy_trainer = *policy_trainer,
                 .scorer = *scorer,
                 .folder = folder,
                 .view = view,
                 .resume = start.resume});
}

}  // namespace

absl::StatusOr<std::string> RunOfflineSession(Program program, const RunConfig& resolved, const SessionOptions& options,
                                              TerminalView& view, Cancellation& cancellation) {
  RunConfig config = resolved;
  FillDefaultsFor(program, &config);
  QUARTET_RETURN_IF_ERROR(CheckRunDir(config, options.allowed_entry));
  const absl::StatusOr<Inputs> inputs = ReadInputs(config, program, options.launch, view);
  if (!inputs.ok()) return AsWrongInput(inputs.status());
  std::vector<RunInput> files = ModelInputs(config);
  const Dataset& rows = inputs->examples != nullptr ? inputs->examples->rows() : inputs->pairs->rows();
  for (RunInput& file : RowInputs(rows)) files.push_back(std::move(file));
  QUARTET_ASSIGN_OR_RETURN(const RunStart start, OpenRun(config, options.allowed_entry, files,
                                                         [&cancellation] { return cancellation.status(); }));
  start.folder->UseConfigText(PrintRunConfig(config, options.origins));
  view.Print(absl::StrCat("run folder: ", start.folder->path()));
  ShowInputs(*inputs, view);
  for (const std::string& note : start.notes) view.Print(note);
  if (start.resume.has_value()) {
    const std::string checkpoint =
        absl::StrCat(start.folder->checkpoints_path(), "/", CheckpointId(start.resume->step));
    if (program == Program::kRewardModel) {
      config.mutable_critic()->set_load_checkpoint(checkpoint + "/critic_state");
    } else {
      config.mutable_actor()->set_load_checkpoint(checkpoint + "/policy_state");
    }
  }
  view.Print(absl::StrCat("micro-batches: ", DescribeMicroBatches(config, ServicesOf(program, config))));
  QUARTET_ASSIGN_OR_RETURN(
      const std::unique_ptr<ServiceLauncher> launcher,
      LaunchServices(options, ServicesOf(program, config), *start.folder, view, cancellation, &config));
  absl::StatusOr<OfflineSummary> summary = RunLoop(program, config, *inputs, start, view, cancellation);
  if (summary.ok()) return summary->checkpoint;
  return WithContinuation(Explain(summary.status(), launcher.get(), cancellation), options, *start.folder,
                          config.train());
}

}  // namespace quartet

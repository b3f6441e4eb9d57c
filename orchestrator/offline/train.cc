#include "orchestrator/offline/train.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/clients/service_clients.h"
#include "core/config/batches/micro_batches.h"
#include "core/model/model_config.h"
#include "core/run_folder/run_inputs.h"
#include "orchestrator/checks/start_check.h"
#include "orchestrator/data/dataset_options.h"
#include "orchestrator/data/first_example.h"
#include "orchestrator/data/preference_pairs.h"
#include "orchestrator/data/sft_examples.h"
#include "orchestrator/offline/dpo.h"
#include "orchestrator/offline/offline_loop.h"
#include "orchestrator/offline/reward_model.h"
#include "orchestrator/offline/sft.h"

namespace quartet {
namespace {

// What a run reads before anything of it is made or started: examples, or pairs.
struct Inputs {
  std::unique_ptr<SftExamples> examples;
  std::unique_ptr<PreferencePairs> pairs;
  std::unique_ptr<PreferencePairs> held_out;  // null where preference.eval_data names no files
};

absl::Status ReadRows(RunSession& session, Inputs* inputs) {
  const std::string model = LearningSection(session.program());
  const RunConfig& config = session.config();
  const Tokenizer& tokenizer = session.tokenizer();
  QUARTET_ASSIGN_OR_RETURN(const ModelConfig read, ReadModelConfig(TrainerOf(config, model).pretrain()));
  const std::vector<int64_t>& ends = read.eos_token_ids;
  if (session.program() == Program::kSft) {
    QUARTET_ASSIGN_OR_RETURN(inputs->examples, OpenSftExamples(config, tokenizer, ends, session.ShowChecking()));
    return absl::OkStatus();
  }
  const auto open = [&](bool held_out) {
    return OpenPreferencePairs(config, held_out, model, tokenizer, ends, session.ShowChecking());
  };
  QUARTET_ASSIGN_OR_RETURN(inputs->pairs, open(/*held_out=*/false));
  if (config.preference().eval_data().empty()) return absl::OkStatus();
  QUARTET_ASSIGN_OR_RETURN(inputs->held_out, open(/*held_out=*/true));
  return absl::OkStatus();
}

std::vector<RunInput> RowFiles(const Inputs& inputs) {
  if (inputs.examples != nullptr) return RowInputs(inputs.examples->rows());
  std::vector<RunInput> files = RowInputs(inputs.pairs->rows());
  if (inputs.held_out == nullptr) return files;
  for (RunInput& file : RowInputs(inputs.held_out->rows())) files.push_back(std::move(file));
  return files;
}

void ShowInputs(const Inputs& inputs, const Tokenizer& tokenizer, TerminalView& view) {
  if (inputs.examples != nullptr) {
    view.Print(absl::StrCat("examples: ", DescribeRows("an epoch", inputs.examples->rows())));
    view.Print(DescribeExample(inputs.examples->first(), tokenizer));
    return;
  }
  view.Print(absl::StrCat("pairs: ", DescribeRows("an epoch", inputs.pairs->rows())));
  if (inputs.held_out != nullptr) {
    view.Print(absl::StrCat("held-out pairs: ", DescribeRows("in all", inputs.held_out->rows())));
  }
  const PreferencePair& first = inputs.pairs->first();
  view.Print(DescribePair(first.chosen, first.rejected, tokenizer));
}

absl::Status ReadInputs(RunSession& session, Inputs* inputs) {
  return session.ReadInputs([&] { return ReadRows(session, inputs); });
}

// Of a run that goes on: all that can be said before its services are there.
absl::Status CheckGoesOn(RunSession& session, const Inputs& inputs) {
  if (!session.resume().has_value()) return absl::OkStatus();
  const RunConfig& config = session.config();
  const CheckpointRecord& resume = *session.resume();
  const TrainConfig& train = config.train();
  const auto check = [&](const auto& files, const auto& learned) -> absl::Status {
    QUARTET_RETURN_IF_ERROR(CheckStepsLeft(resume.step, OfflineSteps(learned.rows().rows(), train, resume),
                                           train.max_steps() > 0 ? "train.max_steps" : "train.num_episodes"));
    return CheckRowsGoOn(config,
                         {.batch_field = "train.train_batch_size",
                          .batch_size = train.train_batch_size(),
                          .hash = learned.hash(),
                          .files = absl::StrJoin(files, ", ")},
                         LearningSection(session.program()), resume, session.folder().checkpoints_path());
  };
  return session.program() == Program::kSft ? check(config.sft().data(), *inputs.examples)
                                            : check(config.preference().data(), *inputs.pairs);
}

absl::StatusOr<OfflineSummary> RunLoop(RunSession& session, const Inputs& inputs) {
  const Program program = session.program();
  const RunConfig& config = session.config();
  Cancellation* const cancellation = &session.cancellation();
  const OfflineRun run = {.config = config,
                          .tokenizer = session.tokenizer(),
                          .folder = session.folder(),
                          .view = session.view(),
                          .resume = session.resume(),
                          .ending = [cancellation] { return cancellation->ending(); },
                          .ends_continuable = session.ends_continuable(),
                          .begun = [&session](int64_t steps) { session.Begin(steps); },
                          .cancellation = cancellation};
  if (program == Program::kRewardModel) {
    QUARTET_ASSIGN_OR_RETURN(const auto critic_trainer, ConnectCriticTrainer(config, cancellation));
    return RunRewardModel(run, *inputs.pairs, inputs.held_out.get(), *critic_trainer);
  }
  QUARTET_ASSIGN_OR_RETURN(const auto policy_trainer, ConnectPolicyTrainer(config, cancellation));
  if (program == Program::kSft) return RunSft(run, *inputs.examples, *policy_trainer);
  const auto run_dpo = [&](ScorerClient* scorer) {
    return RunDpo(run, *inputs.pairs, inputs.held_out.get(), *policy_trainer, scorer);
  };
  if (ReferenceIsBase(config)) return run_dpo(nullptr);
  QUARTET_ASSIGN_OR_RETURN(const auto scorer, ConnectScorer(config, cancellation));
  return run_dpo(scorer.get());
}

}  // namespace

absl::Status CheckRows(RunSession& session) {
  Inputs inputs;
  QUARTET_RETURN_IF_ERROR(ReadInputs(session, &inputs));
  return session.CheckInputsUnchanged(RowFiles(inputs));
}

absl::StatusOr<std::string> TrainOnRows(RunSession session) {
  const RunConfig& config = session.config();
  TerminalView& view = session.view();
  Inputs inputs;
  QUARTET_RETURN_IF_ERROR(ReadInputs(session, &inputs));
  view.Print(absl::StrCat("run folder: ", config.run_dir()));
  ShowInputs(inputs, session.tokenizer(), view);
  QUARTET_RETURN_IF_ERROR(session.OpenFolder(RowFiles(inputs)));
  QUARTET_RETURN_IF_ERROR(CheckGoesOn(session, inputs));
  view.Print(absl::StrCat("micro-batches: ", DescribeMicroBatches(config, ServicesOf(session.program(), config))));
  QUARTET_RETURN_IF_ERROR(session.StartServices());
  const absl::StatusOr<OfflineSummary> summary = RunLoop(session, inputs);
  QUARTET_RETURN_IF_ERROR(session.End(summary.status()));
  return summary->checkpoint;
}

}  // namespace quartet

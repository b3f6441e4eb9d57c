#include "orchestrator/loop/session.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/batches/micro_batches.h"
#include "core/config/batches/updates.h"
#include "core/config/run_config.h"
#include "orchestrator/checks/input_check.h"
#include "orchestrator/clients/hello.h"
#include "orchestrator/data/dataset_options.h"
#include "orchestrator/data/first_example.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/loop/step_warnings.h"
#include "orchestrator/run_folder/checkpoint_record.h"
#include "orchestrator/run_folder/run_start.h"

namespace quartet {
namespace {

// What a PPO run reads before anything of it is made or started.
struct PpoInputs {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Prompts> prompts;
  std::vector<EvaluationSet> evaluation_sets;
};

absl::StatusOr<PpoInputs> ReadPpoInputs(const RunConfig& config, bool launch, TerminalView& view) {
  QUARTET_RETURN_IF_ERROR(CheckFor(config, Program::kPpo));
  QUARTET_RETURN_IF_ERROR(CheckInputs(config, PpoServices(config), launch));
  PpoInputs inputs;
  QUARTET_ASSIGN_OR_RETURN(inputs.tokenizer, LoadTokenizer(config, "actor"));
  // First, as it is quick: prompts may be many.
  QUARTET_ASSIGN_OR_RETURN(inputs.evaluation_sets, LoadEvaluationSets(config, *inputs.tokenizer));
  QUARTET_ASSIGN_OR_RETURN(inputs.prompts, Prompts::Open(config, *inputs.tokenizer, ShowChecking(view)));
  view.End();
  QUARTET_RETURN_IF_ERROR(CheckBatch(config, inputs.prompts->size()));
  int64_t evaluated = 0;
  for (const EvaluationSet& set : inputs.evaluation_sets) {
    evaluated =
        std::max<int64_t>(evaluated, static_cast<int64_t>(set.prompts.size()) * set.options.n_samples_per_prompt());
  }
  QUARTET_RETURN_IF_ERROR(CheckCallSizes(config, evaluated));
  return inputs;
}

}  // namespace

absl::StatusOr<PpoResult> RunPpoSession(const RunConfig& resolved, const SessionOptions& options, TerminalView& view,
                                        Cancellation& cancellation) {
  // 1. Everything that can be wrong before a folder is made or a service is started.
  RunConfig config = resolved;
  QUARTET_RETURN_IF_ERROR(CheckRunDir(config, options.allowed_entry));
  const absl::StatusOr<PpoInputs> inputs = ReadPpoInputs(config, options.launch, view);
  if (!inputs.ok()) return AsWrongInput(inputs.status());
  view.Print(absl::StrCat("run folder: ", config.run_dir()));
  view.Print(absl::StrCat("prompts: ", DescribeRows("an epoch", inputs->prompts->rows())));
  for (const EvaluationSet& set : inputs->evaluation_sets) {
    view.Print(absl::StrCat("evaluation ", set.options.name(), ": ", set.description));
  }
  view.Print(DescribePrompt(inputs->prompts->first(), *inputs->tokenizer));
  std::vector<RunInput> files = ModelInputs(config);
  for (RunInput& file : RowInputs(inputs->prompts->rows())) files.push_back(std::move(file));
  QUARTET_ASSIGN_OR_RETURN(const RunStart start, OpenRun(config, options.allowed_entry, files,
                                                         [&cancellation] { return cancellation.status(); }));
  start.folder->UseConfigText(PrintRunConfig(config, options.origins));
  for (const std::string& note : start.notes) view.Print(note);
  if (start.resume.has_value()) {
    const std::string checkpoint =
        absl::StrCat(start.folder->checkpoints_path(), "/", CheckpointId(start.resume->step));
    config.mutable_actor()->set_load_checkpoint(checkpoint + "/policy_state");
    if (UsesCritic(config)) config.mutable_critic()->set_load_checkpoint(checkpoint + "/critic_state");
  }

  view.Print(absl::StrCat("updates: ", DescribeUpdates(config)));
  for (const std::string& warning : ConfigurationWarnings(config)) view.Print("warning: " + warning);
  view.Print(absl::StrCat("micro-batches: ", DescribeMicroBatches(config, PpoServices(config))));

  // 2. The services.
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<ServiceLauncher> launcher,
                           LaunchServices(options, PpoServices(config), *start.folder, view, cancellation, &config));
  QUARTET_ASSIGN_OR_RETURN(Services services, ConnectServices(config, &cancellation));

  // 3. The loop.
  PpoResult result;
  absl::StatusOr<PpoSummary> summary = RunPpo({.config = config,
                                               .tokenizer = *inputs->tokenizer,
                                               .prompts = *inputs->prompts,
                                               .evaluation_sets = inputs->evaluation_sets,
                                               .services = services,
                                               .folder = *start.folder,
                                               .view = view,
                                               .resume = start.resume});
  if (!summary.ok()) {
    return WithContinuation(Explain(summary.status(), launcher.get(), cancellation), options, *start.folder,
                            config.train());
  }
  result.summary = *std::move(summary);
  for (ServiceClient* client : services.all()) {
    absl::StatusOr<ServiceInfo> info = client->GetInfo();
    if (!info.ok()) return Explain(info.status(), launcher.get(), cancellation);
    result.services[client->service()] = *std::move(info);
  }
  return result;
}

absl::StatusOr<std::vector<EvaluationResult>> RunEvaluationSession(const RunConfig& resolved, int64_t step,
                                                                   const SessionOptions& options, TerminalView& view,
                                                                   Cancellation& cancellation) {
  RunConfig config = resolved;
  // Nothing is trained, and there is no penalty: the scorer does without a reference.
  config.mutable_algorithm()->mutable_kl()->Clear();
  config.mutable_algorithm()->mutable_kl()->set_init_kl_coef(0);
  config.clear_reference();
  config.mutable_train()->clear_load_checkpoint();
  for (const Program program : {Program::kRollout, Program::kScorer}) {
    QUARTET_RETURN_IF_ERROR(CheckFor(config, program));
  }
  QUARTET_RETURN_IF_ERROR(CheckNewRunDir(config, options.allowed_entry));
  if (absl::Status inputs = CheckInputs(config, kEvaluationServices, options.launch); !inputs.ok()) {
    return AsWrongInput(inputs);
  }
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(config, "actor");
  if (!tokenizer.ok()) return AsWrongInput(tokenizer.status());
  const absl::StatusOr<std::vector<EvaluationSet>> sets = LoadEvaluationSets(config, **tokenizer);
  if (!sets.ok()) return AsWrongInput(sets.status());
  if (sets->empty()) return absl::InvalidArgumentError("eval.data and eval.set are empty; they name what is evaluated");
  for (const EvaluationSet& set : *sets) view.Print(absl::StrCat(set.options.name(), ": ", set.description));
  view.Print(DescribePrompt(sets->front().prompts.front(), **tokenizer));

  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<RunFolder> folder, RunFolder::Create(config, options.allowed_entry));
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<ServiceLauncher> launcher,
                           LaunchServices(options, kEvaluationServices, *folder, view, cancellation, &config));
  QUARTET_ASSIGN_OR_RETURN(const Services services, ConnectServices(config, &cancellation));
  const auto on_loading = [&view](const std::string& waiting, const std::string& detail) {
    view.PrintAndBegin(waiting);
    view.Progress(0, detail);
  };
  const int64_t longest = int64_t{config.data().prompt_max_len()} + config.rollout().generate_max_len();
  uint64_t policy_version = 0;
  for (ServiceClient* client :
       {static_cast<ServiceClient*>(services.rollout.get()), static_cast<ServiceClient*>(services.scorer.get())}) {
    const absl::StatusOr<ServiceInfo> info =
        CheckService(*client, config, (*tokenizer)->vocab_size(), longest, on_loading);
    if (!info.ok()) return Explain(info.status(), launcher.get(), cancellation);
    policy_version = std::max(policy_version, info->policy_version());
  }
  QUARTET_RETURN_IF_ERROR(folder->BeginAfter(0));
  absl::StatusOr<std::vector<EvaluationResult>> results =
      EvaluateSets(config, *sets, step, policy_version, **tokenizer, services, *folder, view);
  if (!results.ok()) return Explain(results.status(), launcher.get(), cancellation);
  for (size_t i = 0; i < results->size(); ++i) {
    QUARTET_RETURN_IF_ERROR(AtomicWriteFile(absl::StrCat(folder->path(), "/answers_", (*results)[i].set, ".jsonl"),
                                            AnswerLines((*sets)[i], (*results)[i])));
  }
  return results;
}

}  // namespace quartet

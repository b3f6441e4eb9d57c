#include "orchestrator/loop/train.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/batches/micro_batches.h"
#include "core/config/batches/updates.h"
#include "core/rl/options/estimators.h"
#include "core/run_folder/run_inputs.h"
#include "orchestrator/agents/agent_process.h"
#include "orchestrator/agents/episode_answers.h"
#include "orchestrator/checks/input_check.h"
#include "orchestrator/checks/start_check.h"
#include "orchestrator/data/dataset_options.h"
#include "orchestrator/data/first_example.h"
#include "orchestrator/data/reward_sources.h"
#include "orchestrator/loop/report/step_warnings.h"

namespace quartet {
namespace {

// What a PPO run reads before anything of it is made or started.
struct PpoInputs {
  std::unique_ptr<AdvantageProgram> advantages;  // where algorithm.advantage_command gives them
  std::unique_ptr<Prompts> prompts;
  std::vector<EvaluationSet> evaluation_sets;
};

absl::Status ReadPpoInputs(RunSession& session, PpoInputs* inputs) {
  const RunConfig& config = session.config();
  if (EstimatorOf(config.algorithm()).by_program) {
    QUARTET_ASSIGN_OR_RETURN(inputs->advantages, AdvantageProgram::Start(config.algorithm()));
  }
  if (HasAgent(config)) QUARTET_RETURN_IF_ERROR(TryAgent(config.agent()));
  // First, as it is quick: prompts may be many.
  QUARTET_ASSIGN_OR_RETURN(inputs->evaluation_sets,
                           LoadEvaluationSets(config, session.tokenizer(), session.ShowChecking()));
  QUARTET_ASSIGN_OR_RETURN(inputs->prompts, Prompts::Open(config, session.tokenizer(), session.ShowChecking()));
  QUARTET_RETURN_IF_ERROR(CheckBatch(config, inputs->prompts->size()));
  std::set<std::string> sources = inputs->prompts->sources();
  for (const EvaluationSet& set : inputs->evaluation_sets) {
    for (const PromptRecord& prompt : set.prompts) sources.insert(prompt.metrics_source);
  }
  // Those of rows that are not checked are not known.
  if (inputs->prompts->rows().unchecked_rows() == 0 && sources.size() <= PromptSources::kMost) {
    QUARTET_RETURN_IF_ERROR(CheckOnly(config.reward(), sources));
  }
  return CheckCallSizes(config, MostSequences(inputs->evaluation_sets));
}

std::vector<RunInput> RowFiles(const PpoInputs& inputs) {
  std::vector<RunInput> files = RowInputs(inputs.prompts->rows());
  for (const EvaluationSet& set : inputs.evaluation_sets) files.insert(files.end(), set.files.begin(), set.files.end());
  return files;
}

absl::Status ReadInputs(RunSession& session, PpoInputs* inputs) {
  return session.ReadInputs([&] { return ReadPpoInputs(session, inputs); });
}

}  // namespace

absl::Status CheckPpo(RunSession& session) {
  PpoInputs inputs;
  QUARTET_RETURN_IF_ERROR(ReadInputs(session, &inputs));
  return session.CheckInputsUnchanged(RowFiles(inputs));
}

absl::StatusOr<PpoResult> TrainByPpo(RunSession session) {
  // 1. Everything that can be wrong before a folder is made or a service is started.
  const RunConfig& config = session.config();
  TerminalView& view = session.view();
  const std::vector<std::string> services_of_run = PpoServices(config);
  PpoInputs inputs;
  QUARTET_RETURN_IF_ERROR(ReadInputs(session, &inputs));
  view.Print(absl::StrCat("run folder: ", config.run_dir()));
  view.Print(absl::StrCat("prompts: ", DescribeRows("an epoch", inputs.prompts->rows())));
  for (const EvaluationSet& set : inputs.evaluation_sets) {
    view.Print(absl::StrCat("evaluation ", set.options.name(), ": ", set.description));
  }
  view.Print(DescribePrompt(inputs.prompts->first(), session.tokenizer()));
  QUARTET_RETURN_IF_ERROR(session.OpenFolder(RowFiles(inputs)));
  if (session.resume().has_value()) {
    QUARTET_RETURN_IF_ERROR(CheckGoesOn(config, inputs.prompts->hash(), PpoSteps(config, inputs.prompts->size()),
                                        *session.resume(), session.folder().checkpoints_path()));
  }
  view.Print(absl::StrCat("updates: ", DescribeUpdates(config)));
  const std::vector<std::string> warnings = ConfigurationWarnings(config);
  for (const std::string& warning : warnings) view.Print("warning: " + warning);
  view.Print(absl::StrCat("micro-batches: ", DescribeMicroBatches(config, services_of_run)));

  // 2. The services.
  QUARTET_RETURN_IF_ERROR(session.StartServices());
  QUARTET_ASSIGN_OR_RETURN(Services services, ConnectServices(config, &session.cancellation()));

  // 3. The loop.
  QUARTET_ASSIGN_OR_RETURN(
      const std::unique_ptr<AnswerSource> answers,
      MakeAnswerSource(config, &session.tokenizer(), services.rollout.get(), &session.cancellation()));
  PpoResult result;
  absl::StatusOr<PpoSummary> summary = RunPpo(
      {.config = config,
       .tokenizer = session.tokenizer(),
       .prompts = *inputs.prompts,
       .evaluation_sets = inputs.evaluation_sets,
       .services = services,
       .answers = *answers,
       .folder = session.folder(),
       .view = view,
       .resume = session.resume(),
       .advantages = inputs.advantages.get(),
       .ending = [&] { return session.cancellation().ending(); },
       .ends_continuable = session.ends_continuable(),
       .begun =
           [&](int64_t steps) {
             session.Begin(steps);
             for (const std::string& warning : warnings) session.Warn(warning);
           },
       .starter = session.starter(),
       .on_moved = [&](const std::string& service, const std::string& address) { session.MoveTo(service, address); },
       .cancellation = &session.cancellation()});
  if (!summary.ok()) return session.End(summary.status());
  result.summary = *std::move(summary);
  for (ServiceClient* client : services.all()) {
    absl::StatusOr<ServiceInfo> info = client->GetInfo();
    if (!info.ok()) return session.End(info.status());
    result.services[client->service()] = *std::move(info);
  }
  QUARTET_RETURN_IF_ERROR(session.End(absl::OkStatus()));
  return result;
}

}  // namespace quartet

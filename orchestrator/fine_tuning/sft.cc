#include "orchestrator/fine_tuning/sft.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/rl/aggregation.h"
#include "core/rl/learning_rate.h"
#include "orchestrator/checks/start_check.h"
#include "orchestrator/clients/hello.h"
#include "orchestrator/data/dataset_options.h"
#include "orchestrator/terminal/time_left.h"

namespace quartet {
namespace {

// Lines that a run prints, however many steps it has.
constexpr int64_t kPrintedLines = 10;

}  // namespace

absl::StatusOr<SftSummary> RunSft(const SftRun& run) {
  const RunConfig& config = run.config;
  const int64_t count = run.examples.rows().rows();
  const int64_t batch_size = config.sft().batch_size();
  const int64_t steps = config.sft().max_steps() > 0
                            ? config.sft().max_steps()
                            : (count * config.sft().max_epochs() + batch_size - 1) / batch_size;
  QUARTET_ASSIGN_OR_RETURN(const LearningRateSchedule schedule,
                           LearningRateSchedule::Create({.peak = config.sft().learning_rate(),
                                                         .scheduler = config.actor().lr_scheduler(),
                                                         .warmup_ratio = config.actor().lr_warmup_ratio(),
                                                         .min_ratio = config.actor().min_lr_ratio(),
                                                         .total_steps = steps}));
  QUARTET_ASSIGN_OR_RETURN(
      const ServiceInfo trainer,
      CheckService(run.policy_trainer, config, run.tokenizer.vocab_size(), config.actor().max_len(),
                   [&run](const std::string& waiting, const std::string& detail) {
                     run.view.PrintAndBegin(waiting);
                     run.view.Progress(0, detail);
                   }));
  QUARTET_RETURN_IF_ERROR(CheckFreshTrainer(trainer, "actor", config.actor().load_checkpoint()));
  QUARTET_RETURN_IF_ERROR(run.folder.BeginAfter(0));

  SftSummary summary;
  summary.steps = steps;
  TimeLeft time_left;
  run.view.Begin("fine-tuning", steps);
  for (int64_t step = 0; step < steps; ++step) {
    const absl::Time began = absl::Now();
    // 1. The next examples. The last batch does not reach into an epoch beyond the last.
    const int64_t begin = step * batch_size;
    const int64_t end = config.sft().max_steps() > 0 ? begin + batch_size
                                                     : std::min(begin + batch_size, count * config.sft().max_epochs());
    QUARTET_ASSIGN_OR_RETURN(std::vector<TokenSequence> examples, run.examples.Take(begin, end - begin));
    std::vector<TrainingSequence> batch(examples.size());
    std::vector<AggregatedSequence> parts;
    for (size_t i = 0; i < batch.size(); ++i) {
      TokenSequence& tokens = *batch[i].mutable_tokens();
      tokens = std::move(examples[i]);
      tokens.set_index(i);
      parts.push_back({.action_tokens = std::count(tokens.action_mask().begin(), tokens.action_mask().end(), true)});
    }
    const std::vector<float> weights = LossWeights(parts, LossAggregation::kTokenMean);
    for (size_t i = 0; i < batch.size(); ++i) {
      batch[i].mutable_loss_weights()->Resize(static_cast<int>(parts[i].action_tokens), weights[i]);
    }

    // 2. One optimizer step.
    PolicyUpdateHeader header;
    header.set_temperature(1);
    header.mutable_loss()->set_kind(PolicyLossConfig::KIND_SFT);
    header.set_learning_rate(schedule.At(step + 1));
    QUARTET_ASSIGN_OR_RETURN(const PolicyUpdateReply reply,
                             run.policy_trainer.Update(static_cast<uint64_t>(step), header, batch));
    if (reply.skipped() || !std::isfinite(reply.loss())) {
      return absl::FailedPreconditionError(
          absl::StrCat("step ", step, ": the gradient is not finite; lower sft.learning_rate"));
    }

    // 3. Record.
    Metrics metrics;
    metrics.Set("sft/loss", reply.loss());
    metrics.Set("sft/learning_rate", header.learning_rate());
    metrics.Set("sft/grad_norm", reply.grad_norm());
    const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
    metrics.Set("sft/tokens", static_cast<double>(reply.tokens()));
    metrics.Set("sft/tokens_per_second", static_cast<double>(reply.tokens()) / seconds);
    metrics.Set("sft/micro_batches", static_cast<double>(reply.micro_batches()));
    metrics.Set("sft/balance", reply.balance());
    AddDataMetrics(run.examples.rows(), end, &metrics);
    metrics.Set("time/step", seconds);
    QUARTET_RETURN_IF_ERROR(run.folder.WriteMetrics(step, metrics));
    run.view.Progress(step + 1);
    time_left.AddStep(absl::Seconds(seconds));
    if (step == 0 || step + 1 == steps || (step + 1) % std::max<int64_t>(1, steps / kPrintedLines) == 0) {
      run.view.Print(absl::StrFormat("fine-tuning step %d/%d: loss %.4f%s", step + 1, steps, reply.loss(),
                                     time_left.Text(", ", steps - step - 1)));
    }
  }

  // 4. Save.
  const std::string id = CheckpointId(steps);
  run.view.Begin("checkpoint");
  if (const absl::Status saved =
          run.policy_trainer.SaveCheckpoint(static_cast<uint64_t>(steps), id, /*save_optimizer=*/false).status();
      !saved.ok()) {
    return run.folder.GiveUpCheckpoint(id, {saved});
  }
  run.view.End();
  std::error_code ignored;
  if (!std::filesystem::exists(absl::StrCat(run.folder.checkpoints_path(), "/", id, "/policy"), ignored)) {
    return absl::FailedPreconditionError(absl::StrCat("the policy trainer saved ", id, " in its own run_dir, not in ",
                                                      run.folder.path(), "; give both programs the same run_dir"));
  }
  summary.checkpoint = absl::StrCat("checkpoints/", id, "/policy");
  QUARTET_RETURN_IF_ERROR(run.folder.PointLatestAt(id));
  return summary;
}

}  // namespace quartet

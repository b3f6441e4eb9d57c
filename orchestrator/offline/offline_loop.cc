#include "orchestrator/offline/offline_loop.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/base/division.h"
#include "core/base/status_macros.h"
#include "core/base/time/stopwatch.h"
#include "core/base/time/time_left.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/config/services.h"
#include "core/rl/learning_rate.h"
#include "core/terminal/folder_growth.h"
#include "orchestrator/checks/start_check.h"
#include "orchestrator/data/dataset_options.h"
#include "orchestrator/session/warning.h"
#include "orchestrator/tracing/step_trace.h"

namespace quartet {
namespace {

// Lines that a run prints, however many steps it has.
constexpr int64_t kPrintedLines = 10;
// So many steps in a row without a gradient are told of.
constexpr int kIdleSteps = 5;

// Nothing where every pair is a tie, as before the first step of DPO, whose policy is its reference yet: no margin is
// above 0, and their mean is 0.
std::optional<double> AccuracyOf(const PairStats& stats) {
  if (stats.accuracy() == 0 && stats.margin() == 0) return std::nullopt;
  return stats.accuracy();
}
std::string AccuracyText(const PairStats& stats) {
  const std::optional<double> accuracy = AccuracyOf(stats);
  return accuracy.has_value() ? absl::StrFormat("accuracy %.3f", *accuracy) : "accuracy - (all are ties)";
}

// By the steps before it.
int64_t RowsTaken(const std::optional<CheckpointRecord>& resume) { return resume.has_value() ? resume->drawn() : 0; }

class OfflineLoop {
 public:
  OfflineLoop(const OfflineRun& run, OfflineMethod& method)
      : run_(run),
        method_(method),
        plan_(method.plan()),
        trainer_(TrainerOf(run.config, plan_.model)),
        rows_(method.rows().rows()),
        steps_(OfflineSteps(rows_, run.config.train(), run.resume)),
        first_step_(run.resume.has_value() ? run.resume->step : 0),
        rows_taken_(RowsTaken(run.resume)) {}

  absl::StatusOr<OfflineSummary> Run() {
    QUARTET_ASSIGN_OR_RETURN(const LearningRateSchedule schedule, LearningRateSchedule::Create(trainer_, steps_));
    QUARTET_RETURN_IF_ERROR(Meet());
    // The services have accepted the run: now the folder may change.
    QUARTET_RETURN_IF_ERROR(run_.folder.BeginAfter(
        first_step_, [this](const Metrics& step) { BecomesIdle(step.Get(plan_.name + "/grad_norm").value_or(1)); }));
    if (run_.begun) run_.begun(steps_);
    StepTrace trace(run_.config, first_step_, steps_, method_.services(), run_.folder, run_.view);
    OfflineSummary summary;
    summary.steps = steps_;
    if (first_step_ == 0) {
      QUARTET_ASSIGN_OR_RETURN(summary.before, Judge("before the first step"));
      summary.after = summary.before;
    } else {
      summary.checkpoint =
          absl::StrCat("checkpoints/", CheckpointId(first_step_), "/", TrainerNamesOf(plan_.model).model);
      run_.view.Print(absl::StrFormat("going on after %d of %d steps", first_step_, steps_));
    }
    run_.view.Begin(plan_.title, steps_);
    for (int64_t step = first_step_; step < steps_; ++step) {
      const auto is_due = [&](int64_t every) { return step + 1 == steps_ || (every > 0 && (step + 1) % every == 0); };
      trace.BeginStep(step);
      QUARTET_RETURN_IF_ERROR(
          TakeStep(step, schedule.At(step + 1), is_due(run_.config.train().eval_steps()), &summary));
      trace.EndStep(step);
      const absl::Status ending = run_.ending();
      if (!is_due(run_.config.train().save_steps()) && ending.ok()) continue;
      QUARTET_ASSIGN_OR_RETURN(summary.checkpoint, Save(step + 1));
      if (!ending.ok() && step + 1 < steps_) return ending;
      run_.view.Begin(plan_.title, steps_);
      run_.view.Progress(step + 1);
    }
    run_.view.End();
    return summary;
  }

 private:
  absl::Status Meet() {
    const OnLoading on_loading = run_.view.ShowLoading();
    QUARTET_ASSIGN_OR_RETURN(
        const ServiceInfo trainer,
        CheckService(method_.trainer(), run_.config, run_.tokenizer.vocab_size(), trainer_.max_len(), on_loading));
    if (run_.resume.has_value()) {
      QUARTET_RETURN_IF_ERROR(CheckResumedTrainer(trainer, *run_.resume->state_of(plan_.model), plan_.model,
                                                  run_.folder.checkpoint_path(CheckpointId(first_step_))));
    } else {
      QUARTET_RETURN_IF_ERROR(CheckFreshTrainer(trainer, plan_.model, trainer_.load_checkpoint()));
    }
    optimizer_steps_ = OptimizerSteps(trainer);
    return method_.MeetOthers(trainer, on_loading);
  }

  absl::Status TakeStep(int64_t step, double learning_rate, bool judge, OfflineSummary* summary) {
    const Stopwatch whole_step;
    const TrainConfig& train = run_.config.train();
    const int64_t begin = rows_taken_, whole = begin + train.train_batch_size();
    const int64_t end = train.max_steps() > 0 ? whole : std::min(whole, rows_ * train.num_episodes());
    QUARTET_ASSIGN_OR_RETURN(const OfflineStep done, method_.Step(step, learning_rate, begin, end - begin));
    if (done.skipped || !std::isfinite(done.loss)) {
      // Before the first optimizer step no rate has been of any effect.
      const std::string why = optimizer_steps_ == 0
                                  ? ", before anything was learned: the model's answers to these rows "
                                    "are no numbers; try another model, or dtype \"fp32\""
                                  : absl::StrCat("; lower ", plan_.model, ".learning_rate");
      return absl::FailedPreconditionError(absl::StrCat("step ", step + 1, ": the gradient is not finite", why));
    }
    ++optimizer_steps_;
    rows_taken_ = end;
    const double seconds = whole_step.Seconds();
    time_left_.AddStep(absl::Seconds(seconds));
    run_.view.Progress(step + 1);
    if (step == first_step_ || step + 1 == steps_ || (step + 1) % std::max<int64_t>(1, steps_ / kPrintedLines) == 0) {
      run_.view.Print(absl::StrFormat("%s step %d/%d: loss %.4f%s%s", plan_.title, step + 1, steps_, done.loss,
                                      done.pairs.has_value() ? ", " + AccuracyText(*done.pairs) : "",
                                      time_left_.Text(", ", steps_ - step - 1)));
    }

    Metrics metrics;
    const auto set = [&](const char* leaf, double value) { metrics.Set(absl::StrCat(plan_.name, "/", leaf), value); };
    set("loss", done.loss);
    set("learning_rate", learning_rate);
    set("grad_norm", done.grad_norm);
    set("tokens", static_cast<double>(done.tokens));
    set("tokens_per_second", static_cast<double>(done.tokens) / seconds);
    set("shared_tokens", 1 - static_cast<double>(done.computed_tokens) / static_cast<double>(done.tokens));
    set("micro_batches", static_cast<double>(done.micro_batches));
    set("balance", done.balance);
    if (done.pairs.has_value()) {
      if (const auto accuracy = AccuracyOf(*done.pairs); accuracy.has_value()) set("accuracy", *accuracy);
      set("margin", done.pairs->margin());
      set("chosen_reward", done.pairs->chosen_reward());
      set("rejected_reward", done.pairs->rejected_reward());
    }
    AddDataMetrics(method_.rows(), end, &metrics);
    metrics.Set("time/step", seconds);
    if (judge) {
      absl::StatusOr<std::optional<PairStats>> judged = Judge(absl::StrCat("after step ", step + 1));
      const bool given_up = !judged.ok() && judged.status() == run_.ending();
      if (!given_up) QUARTET_RETURN_IF_ERROR(judged.status());
      summary->after = given_up ? std::nullopt : *std::move(judged);
      if (const std::optional<PairStats>& held_out = summary->after; held_out.has_value()) {
        const std::optional<double> accuracy = AccuracyOf(*held_out);
        if (accuracy.has_value()) metrics.Set("eval/preference_accuracy", *accuracy);
        metrics.Set("eval/preference_margin", held_out->margin());
        metrics.Set("eval/chosen_reward", held_out->chosen_reward());
        metrics.Set("eval/rejected_reward", held_out->rejected_reward());
      }
    }
    QUARTET_RETURN_IF_ERROR(run_.folder.WriteMetrics(step, metrics));
    if (!BecomesIdle(done.grad_norm)) return absl::OkStatus();
    const std::string warning =
        absl::StrCat("nothing was learned in the last ", kIdleSteps, " steps: the gradient was 0. Do the rows of ",
                     plan_.section, ".data say what is to be learned?");
    return ShowWarning(run_.view, run_.folder, step, plan_.name, warning);
  }

  // Of each step of the run in turn, also of those before a continuation: whether it is the first with which
  // kIdleSteps in a row had no gradient.
  bool BecomesIdle(double grad_norm) {
    idle_steps_ = grad_norm == 0 ? idle_steps_ + 1 : 0;
    if (idle_steps_ < kIdleSteps || has_been_idle_) return false;
    has_been_idle_ = true;
    return true;
  }

  absl::StatusOr<std::optional<PairStats>> Judge(const std::string& when) {
    std::optional<Cancellation::GiveUpScope> may_wait;
    if (run_.cancellation != nullptr) may_wait.emplace(run_.cancellation);
    QUARTET_ASSIGN_OR_RETURN(std::optional<PairStats> stats, method_.Judge());
    if (stats.has_value()) {
      run_.view.Print(
          absl::StrFormat("held-out pairs %s: %s, margin %.4f", when, AccuracyText(*stats), stats->margin()));
    }
    return stats;
  }

  // A checkpoint after so many steps. Returns the model's folder, relative to the run folder.
  absl::StatusOr<std::string> Save(int64_t steps) {
    const std::string id = CheckpointId(steps);
    const bool save_optimizer = run_.config.train().save_optimizer() || (run_.ends_continuable && !run_.ending().ok());
    run_.view.Begin("checkpoint", last_checkpoint_bytes_ >> 20);
    const auto saved = ShowGrowth(run_.view, run_.folder.checkpoint_path(id), &last_checkpoint_bytes_, [&] {
      return method_.trainer().SaveCheckpoint(static_cast<uint64_t>(steps), id, save_optimizer);
    });
    if (!saved.ok()) return run_.folder.GiveUpCheckpoint(id, {saved.status()});
    run_.view.End();
    const std::string model = absl::StrCat(id, "/", TrainerNamesOf(plan_.model).model);
    QUARTET_RETURN_IF_ERROR(run_.folder.CheckHasSaved(method_.trainer().service(), model));
    CheckpointRecord record;
    record.step = steps;
    record.seed = run_.config.seed();
    record.rollout_batch_size = run_.config.train().train_batch_size();
    record.prompts_hash = method_.rows_hash();
    record.prompts_drawn = rows_taken_;
    if (save_optimizer) {
      (plan_.model == "critic" ? record.critic : record.policy) = SavedTrainer{saved->state_hash(), optimizer_steps_};
    }
    QUARTET_RETURN_IF_ERROR(run_.folder.CommitCheckpoint(record, run_.config.train().max_ckpt_num()));
    return absl::StrCat("checkpoints/", model);
  }

  const OfflineRun& run_;
  OfflineMethod& method_;
  const OfflinePlan plan_;
  const TrainerConfig& trainer_;
  const int64_t rows_, steps_, first_step_;
  int64_t rows_taken_;           // by the steps so far, over all epochs
  int64_t optimizer_steps_ = 0;  // behind the trainer's weights
  TimeLeft time_left_;
  int64_t last_checkpoint_bytes_ = 0;  // 0: none was saved yet
  int idle_steps_ = 0;                 // the last ones, whose gradient was 0
  bool has_been_idle_ = false;
};

}  // namespace

int64_t OfflineSteps(int64_t rows, const TrainConfig& train, const std::optional<CheckpointRecord>& resume) {
  if (train.max_steps() > 0) return train.max_steps();
  const int64_t batch = train.train_batch_size(), left = rows * train.num_episodes() - RowsTaken(resume);
  return (resume.has_value() ? resume->step : 0) + CeilDivide(left, batch);
}

absl::StatusOr<OfflineSummary> RunOffline(const OfflineRun& run, OfflineMethod& method) {
  return OfflineLoop(run, method).Run();
}

}  // namespace quartet

#include "orchestrator/loop/ppo.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/division.h"
#include "core/base/fail_point.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"
#include "core/base/time/side_by_side.h"
#include "core/base/time/stopwatch.h"
#include "core/base/time/time_left.h"
#include "core/base/trace.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/clients/handshake.h"
#include "core/clients/memory_turns.h"
#include "core/config/services.h"
#include "core/rl/kl.h"
#include "orchestrator/checks/start_check.h"
#include "orchestrator/data/dataset_options.h"
#include "orchestrator/loop/experience/batch_annotator.h"
#include "orchestrator/loop/experience/batch_sampler.h"
#include "orchestrator/loop/experience/experience.h"
#include "orchestrator/loop/ppo_checkpoints.h"
#include "orchestrator/loop/report/batch_file.h"
#include "orchestrator/loop/report/canary_of.h"
#include "orchestrator/loop/report/step_report.h"
#include "orchestrator/loop/report/step_warnings.h"
#include "orchestrator/loop/updates.h"
#include "orchestrator/session/warning.h"
#include "orchestrator/tracing/step_trace.h"

namespace quartet {
namespace {

// The state of a run between its steps, and the steps' parts.
class PpoLoop {
 public:
  explicit PpoLoop(const PpoRun& run)
      : run_(run),
        config_(run.config),
        start_(StartOf(run)),
        kl_controller_(start_.kl_coefficient, config_.algorithm().kl().kl_target(),
                       config_.algorithm().kl().kl_horizon()),
        memory_(config_, run.services),
        annotator_(config_, run.services, memory_, run.view),
        checkpoints_(run, memory_) {}

  absl::StatusOr<PpoSummary> Run();

 private:
  absl::Status Prepare();
  absl::Status Step(int64_t step);
  // Once what `step` learns from is drawn: whether the run ends with it.
  bool IsLast(int64_t step) const {
    return step + 1 >= steps_ || sampler_->drawn() >= PromptsToDraw(config_, run_.prompts.size());
  }

  absl::Status Sync(int64_t step, Metrics* metrics);
  absl::StatusOr<SavedStates> SaveStates(int64_t steps_done, Metrics* metrics);
  absl::Status Commit(int64_t steps_done, const SavedStates& saved, const Metrics& metrics, bool has_evaluation) {
    return checkpoints_.Commit({steps_done, kl_controller_.coefficient(), sampler_->drawn()}, *updates_, saved, metrics,
                               has_evaluation);
  }
  // What remains of a step whose policy is in use in the rollout: its evaluation, and the record of it.
  absl::Status EndStep(int64_t step, bool evaluate, Metrics* metrics);
  absl::Status LeaveEvaluation(int64_t step, Metrics* metrics);
  absl::Status Warn(int64_t step, const std::string& warning);
  // Does what the run was asked for, where at least one step was made here.
  absl::Status TakeRequests();
  // Makes a checkpoint of the run as it is between two steps, unless the last one is that.
  absl::Status SaveNow();
  // Why no further step is made, once the last one has a checkpoint; OK: it is made.
  absl::Status EndEarly();
  // After `step`; -1: before training.
  absl::StatusOr<std::vector<EvaluationResult>> EvaluatePolicy(int64_t step);

  // What the live line and a trace say that the step is at.
  void BeginPhase(const std::string& phase, int64_t total = 0) {
    EndPhase();
    phase_ = phase;
    phase_span_.emplace(phase_);
    run_.view.Begin(absl::StrCat("step ", step_ + 1, "/", steps_, "  ", phase_), total);
  }
  void EndPhase() { phase_span_.reset(); }

  const PpoRun& run_;
  const RunConfig& config_;
  const LoopState start_;
  KlController kl_controller_;
  std::optional<BatchSampler> sampler_;
  MemoryTurns memory_;
  BatchAnnotator annotator_;
  std::optional<Updates> updates_;
  PpoCheckpoints checkpoints_;
  int64_t steps_ = 0;  // at most
  int64_t steps_done_ = 0;
  int64_t step_ = 0;  // under way
  std::string phase_;
  std::optional<TraceScope> phase_span_;  // of phase_
  std::optional<StepTrace> trace_;
  TimeLeft time_left_;
  Metrics last_metrics_;  // of the step before
  StepWarnings warnings_{config_};
  // Of the weights that the policy has now; the rollout must generate with exactly these. And as what it has published
  // them.
  uint64_t policy_version_ = 0;
  std::optional<WeightManifest> published_;
  std::unique_ptr<Upgrades> upgrades_;
  Canary canary_;  // of the last batch
  PpoSummary summary_;
};

absl::StatusOr<PpoSummary> PpoLoop::Run() {
  QUARTET_RETURN_IF_ERROR(Prepare());
  if (start_.steps_done == 0) {
    QUARTET_ASSIGN_OR_RETURN(summary_.before, EvaluatePolicy(-1));
  } else {
    run_.view.Print(absl::StrFormat("going on after %d of %d steps", start_.steps_done, steps_));
  }
  run_.view.Print(StepTableHead());
  if (start_.steps_done > 0 && run_.folder.last_recorded_step() < start_.steps_done - 1) {
    // The run ended between the checkpoint of its last step and the record of it.
    Metrics metrics = run_.resume->metrics;
    QUARTET_RETURN_IF_ERROR(EndStep(start_.steps_done - 1, run_.resume->has_evaluation, &metrics));
  }
  for (; !IsLast(steps_done_ - 1); ++steps_done_) {
    QUARTET_RETURN_IF_ERROR(TakeRequests());
    QUARTET_RETURN_IF_ERROR(EndEarly());
    trace_->BeginStep(steps_done_);
    QUARTET_RETURN_IF_ERROR(Step(steps_done_));
    trace_->EndStep(steps_done_);
  }
  // A weight sync that was lost after the last step would have been noticed by a further step only.
  QUARTET_ASSIGN_OR_RETURN(const ServiceInfo rollout, run_.services.rollout->GetInfo());
  if (rollout.policy_version() != policy_version_) {
    return absl::FailedPreconditionError(absl::StrCat("the rollout ended with policy version ",
                                                      rollout.policy_version(), " instead of ", policy_version_,
                                                      ": a weight sync was lost"));
  }
  summary_.steps = steps_done_;
  summary_.checkpoint = checkpoints_.last_policy();
  return summary_;
}

absl::Status PpoLoop::Prepare() {
  steps_ = PpoSteps(config_, run_.prompts.size());
  steps_done_ = start_.steps_done;
  sampler_.emplace(
      config_, run_.prompts, run_.tokenizer, run_.answers, *run_.services.scorer, start_.prompts_drawn,
      BatchSampler::Progress{.begin = [this](const std::string& phase, int64_t total) { BeginPhase(phase, total); },
                             .done = [this](int64_t done) { run_.view.Progress(done); },
                             .warn = [this](const std::string& warning) { return Warn(step_, warning); }});
  QUARTET_ASSIGN_OR_RETURN(const Handshake handshake,
                           ShakeHands(run_.services, config_, run_.tokenizer.vocab_size(), run_.view.ShowLoading()));
  QUARTET_RETURN_IF_ERROR(CheckStart(config_, run_.resume, run_.folder.checkpoints_path(), handshake));
  QUARTET_ASSIGN_OR_RETURN(updates_,
                           Updates::Create(config_, run_.services, memory_, handshake, steps_, start_.steps_done));
  if (!handshake.rollout.http_url().empty()) {
    run_.view.Print(absl::StrCat("the policy answers HTTP at ", handshake.rollout.http_url(), ", as model \"",
                                 handshake.rollout.served_model_name(), "\""));
  }
  // The services have accepted the run: now the folder may change.
  // A run that is continued every few steps is told of what all of them show, and of each thing once.
  QUARTET_RETURN_IF_ERROR(
      run_.folder.BeginAfter(start_.steps_done, [this](const Metrics& step) { warnings_.Of(step); }));
  if (run_.begun) run_.begun(steps_);
  if (run_.cancellation != nullptr) {
    QUARTET_ASSIGN_OR_RETURN(upgrades_, Upgrades::Open({.config = config_,
                                                        .tokenizer_vocab_size = run_.tokenizer.vocab_size(),
                                                        .services = run_.services,
                                                        .folder = run_.folder,
                                                        .view = run_.view,
                                                        .cancellation = *run_.cancellation,
                                                        .starter = run_.starter,
                                                        .on_moved = run_.on_moved}));
  }
  trace_.emplace(config_, start_.steps_done, steps_, run_.services.all(), run_.folder, run_.view);
  if (!run_.evaluation_sets.empty()) {
    std::vector<HeldoutRecord> records;
    for (const EvaluationSet& set : run_.evaluation_sets) {
      for (const PromptRecord& prompt : set.prompts) records.push_back({prompt.text, prompt.label});
    }
    QUARTET_RETURN_IF_ERROR(run_.folder.WriteHeldout(records));
  }
  // Fresh services all have the weights from disk, version 0. Services that have worked before, and a policy that goes
  // on from a training state, may not agree; nor need a rollout's own model be the policy's.
  policy_version_ = std::max(handshake.rollout.policy_version(), handshake.policy_trainer.policy_version());
  if (policy_version_ > 0 || handshake.policy_trainer.last_applied().sequence() > 0 ||
      OptimizerSteps(handshake.policy_trainer) > 0 || config_.rollout().pretrain() != config_.actor().pretrain()) {
    policy_version_ = std::max(policy_version_ + 1, static_cast<uint64_t>(start_.steps_done));
    run_.view.Begin("bringing the rollout to the policy's weights");
    return memory_.SyncWeights(0, policy_version_, &published_.emplace()).status();
  }
  return memory_.GiveToRollout(0, published_);
}

absl::Status PpoLoop::Step(int64_t step) {
  const Stopwatch whole_step;
  Metrics metrics;
  metrics.Set("policy_version", static_cast<double>(policy_version_));

  // 1. Prompts, n answers to each, and their rewards.
  step_ = step;
  QUARTET_ASSIGN_OR_RETURN(std::vector<Experience> batch, sampler_->Draw(step, policy_version_, &metrics));

  QUARTET_RETURN_IF_ERROR(memory_.GiveToTrainers(static_cast<uint64_t>(step)));

  // 2. Side by side or in turn: values, reference log-probabilities, the policy's own log-probabilities.
  const Stopwatch forwards;
  BeginPhase(absl::StrCat(UsesReference(config_) ? "reference, " : "", UsesCritic(config_) ? "values, " : "",
                          "log-probabilities"));
  QUARTET_RETURN_IF_ERROR(annotator_.Annotate(step, &batch, &metrics));
  metrics.Set("time/forwards", forwards.Seconds());

  // 3. KL, rewards, advantages.
  if (run_.advantages != nullptr) {
    BeginPhase("advantages");
    std::stop_source stop;
    std::optional<Cancellation::Scope> told;
    if (run_.cancellation != nullptr) told.emplace(run_.cancellation, [&stop] { stop.request_stop(); });
    const absl::Status asked = run_.advantages->Ask(step, &batch, stop.get_token());
    if (absl::IsCancelled(asked)) return run_.cancellation->status();
    QUARTET_RETURN_IF_ERROR(asked);
  }
  metrics.Set("kl/coefficient", kl_controller_.coefficient());
  QUARTET_RETURN_IF_ERROR(ComputeAdvantages(config_.algorithm(), kl_controller_.coefficient(), &batch));
  AddExperienceMetrics(batch, HasRewards(config_), &metrics);
  if (config_.train().keep_batches() > 0) {
    QUARTET_RETURN_IF_ERROR(run_.folder.KeepBatch(step + 1, config_.train().keep_batches(),
                                                  [&](const std::string& path) { return WriteBatch(batch, path); }));
  }
  const double kl_coefficient = kl_controller_.coefficient();
  if (config_.algorithm().kl().kl_target() > 0) {
    QUARTET_ASSIGN_OR_RETURN(const KlMean mean, ParseKlMean(config_.algorithm().kl().kl_mean()));
    const std::optional<double> kl = BatchKl(batch, mean);
    if (kl.has_value()) kl_controller_.Update(*kl, static_cast<int64_t>(batch.size()));
  }

  // 4. Policy and critic learn, side by side or in turn.
  const bool trains_policy = updates_->TrainsPolicy(step);
  BeginPhase(!UsesCritic(config_) ? "policy update" : trains_policy ? "policy and critic update" : "critic update");
  QUARTET_RETURN_IF_ERROR(updates_->Run(step, batch, kl_coefficient, &metrics));

  // 5. The rollout gets the new weights.
  const Stopwatch sync;
  BeginPhase("weight sync");
  QUARTET_RETURN_IF_ERROR(trains_policy ? Sync(step, &metrics)
                                        : memory_.GiveToRollout(static_cast<uint64_t>(step), published_));
  metrics.Set("time/weight_sync", sync.Seconds());

  // 6. Samples, checkpoint, metrics: in this order, so that a run which ends anywhere in between loses none of them.
  // Before the commit record of a checkpoint the whole step is made again, after it the rest of the step is.
  canary_ = CanaryOf(batch, config_.reward(), run_.tokenizer);
  if (const auto mean = metrics.Get("reward/mean"); mean.has_value()) summary_.mean_rewards.push_back(*mean);
  if (step == 0) {
    for (const EvaluationResult& result : summary_.before) AddEvaluationMetrics(result, &metrics);
  }
  AddDataMetrics(run_.prompts.rows(), sampler_->drawn(), &metrics);
  AddSourceMetrics(batch, run_.prompts.sources().size(), HasRewards(config_), &metrics);
  QUARTET_RETURN_IF_ERROR(run_.folder.WriteSamples(PickSamples(step, batch, HasRewards(config_), run_.tokenizer)));
  const bool last = IsLast(step);
  const auto is_due = [&](int64_t every) { return last || (every > 0 && (step + 1) % every == 0); };
  const bool evaluate = !run_.evaluation_sets.empty() && is_due(config_.train().eval_steps());
  absl::Status ending = run_.ending();
  std::optional<SavedStates> saved;
  if (is_due(config_.train().save_steps()) || !ending.ok()) {
    QUARTET_ASSIGN_OR_RETURN(saved, SaveStates(step + 1, &metrics));
  }
  QUARTET_RETURN_IF_ERROR(AddServiceMetrics(run_.services, &metrics));
  metrics.Set("time/step", whole_step.Seconds());
  if (saved.has_value()) QUARTET_RETURN_IF_ERROR(Commit(step + 1, *saved, metrics, evaluate));
  // There may be no time for it.
  if (!ending.ok() && evaluate) return ending;
  return EndStep(step, evaluate, &metrics);
}

absl::Status PpoLoop::EndStep(int64_t step, bool evaluate, Metrics* metrics) {
  EndPhase();
  if (evaluate) {
    const TraceScope span("evaluation");
    const Stopwatch stopwatch;
    absl::StatusOr<std::vector<EvaluationResult>> evaluated = EvaluatePolicy(step);
    if (!evaluated.ok() && evaluated.status() == run_.ending()) return LeaveEvaluation(step, metrics);
    QUARTET_RETURN_IF_ERROR(evaluated.status());
    std::vector<EvaluationResult> results = *std::move(evaluated);
    for (const EvaluationResult& result : results) AddEvaluationMetrics(result, metrics);
    metrics->Set("time/evaluation", stopwatch.Seconds());
    metrics->Set("time/step", metrics->Get("time/step").value_or(0) + stopwatch.Seconds());
    if (IsLast(step)) summary_.after = std::move(results);
  }
  QUARTET_RETURN_IF_ERROR(run_.folder.WriteMetrics(step, *metrics));
  last_metrics_ = *metrics;
  // A step that a run before this one has made says nothing of how long they take here.
  if (step >= start_.steps_done) time_left_.AddStep(absl::Seconds(metrics->Get("time/step").value_or(0)));
  run_.view.Print(StepTableLine(step + 1, *metrics, time_left_.Text("  ", steps_ - step - 1)));
  for (const std::string& warning : warnings_.Of(*metrics)) QUARTET_RETURN_IF_ERROR(Warn(step, warning));
  return absl::OkStatus();
}

absl::Status PpoLoop::Warn(int64_t step, const std::string& warning) {
  return ShowWarning(run_.view, run_.folder, step, "orchestrator", warning);
}

// The run ends after `step`, with a checkpoint by which the evaluation is left to the run that goes on.
absl::Status PpoLoop::LeaveEvaluation(int64_t step, Metrics* metrics) {
  run_.view.End();
  if (step >= start_.steps_done && checkpoints_.last_step() != step + 1) {
    QUARTET_ASSIGN_OR_RETURN(const SavedStates saved, SaveStates(step + 1, metrics));
    QUARTET_RETURN_IF_ERROR(Commit(step + 1, saved, *metrics, /*has_evaluation=*/true));
  }
  return run_.ending();
}

absl::Status PpoLoop::Sync(int64_t step, Metrics* metrics) {
  // The policy has changed, so its version has, whatever becomes of the transfer.
  ++policy_version_;
  if (FailPointArmed("orchestrator.weight_sync.skip")) return absl::OkStatus();
  QUARTET_ASSIGN_OR_RETURN(const double paused_seconds,
                           memory_.SyncWeights(static_cast<uint64_t>(step), policy_version_, &published_.emplace()));
  metrics->Set("time/weight_sync_pause", paused_seconds);
  return absl::OkStatus();
}

absl::Status PpoLoop::SaveNow() {
  if (steps_done_ == start_.steps_done || checkpoints_.last_step() == steps_done_) return absl::OkStatus();
  step_ = steps_done_ - 1;
  QUARTET_ASSIGN_OR_RETURN(const SavedStates saved, SaveStates(steps_done_, &last_metrics_));
  QUARTET_RETURN_IF_ERROR(Commit(steps_done_, saved, last_metrics_, /*has_evaluation=*/false));
  EndPhase();
  return absl::OkStatus();
}

absl::StatusOr<SavedStates> PpoLoop::SaveStates(int64_t steps_done, Metrics* metrics) {
  BeginPhase("checkpoint", checkpoints_.last_bytes() >> 20);
  QUARTET_ASSIGN_OR_RETURN(SavedStates saved, checkpoints_.SaveStates(steps_done, metrics));
  QUARTET_RETURN_IF_ERROR(memory_.RestTrainers());
  return saved;
}

absl::Status PpoLoop::EndEarly() {
  absl::Status why = run_.ending();
  if (!why.ok()) QUARTET_RETURN_IF_ERROR(SaveNow());
  return why;
}

absl::Status PpoLoop::TakeRequests() {
  if (upgrades_ == nullptr || steps_done_ == start_.steps_done || !run_.ending().ok() || !upgrades_->IsAsked()) {
    return absl::OkStatus();
  }
  const auto checkpoint = [this]() -> absl::StatusOr<std::pair<CheckpointRecord, std::string>> {
    QUARTET_RETURN_IF_ERROR(SaveNow());
    const std::string folder = run_.folder.checkpoint_path(CheckpointId(steps_done_));
    QUARTET_ASSIGN_OR_RETURN(CheckpointRecord record, ReadCheckpointRecord(folder));
    return std::pair(std::move(record), folder);
  };
  QUARTET_RETURN_IF_ERROR(upgrades_->Do({.steps_done = steps_done_,
                                         .canary = canary_,
                                         .policy_version = policy_version_,
                                         .published = published_,
                                         .checkpoint = checkpoint}));
  // They have been asked for what they compute, or are new.
  QUARTET_RETURN_IF_ERROR(memory_.RestTrainers());
  run_.view.End();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EvaluationResult>> PpoLoop::EvaluatePolicy(int64_t step) {
  std::optional<Cancellation::GiveUpScope> may_wait;
  if (run_.cancellation != nullptr) may_wait.emplace(run_.cancellation);
  QUARTET_ASSIGN_OR_RETURN(std::vector<EvaluationResult> results,
                           EvaluateSets({config_, run_.tokenizer, run_.answers, *run_.services.scorer, run_.folder,
                                         run_.view, Program::kPpo},
                                        run_.evaluation_sets, EvaluatedModelOf(config_, step), policy_version_));
  for (EvaluationResult& result : results) result.answers.clear();  // nobody looks at them, and a run has many
  return results;
}

}  // namespace

int64_t PromptsToDraw(const RunConfig& config, int64_t prompts) {
  return config.train().max_steps() > 0 ? std::numeric_limits<int64_t>::max() : prompts * config.train().num_episodes();
}

int64_t PpoSteps(const RunConfig& config, int64_t prompts) {
  if (config.train().max_steps() > 0) return config.train().max_steps();
  const int64_t a_step = config.rollout().over_sampling_batch_size();
  return std::max<int64_t>(1, CeilDivide(PromptsToDraw(config, prompts), a_step));
}

absl::StatusOr<PpoSummary> RunPpo(const PpoRun& run) {
  absl::StatusOr<PpoSummary> summary = PpoLoop(run).Run();
  run.view.End();
  return summary;
}

}  // namespace quartet

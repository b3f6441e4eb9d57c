#include "orchestrator/ppo.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <future>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/base/fail_point.h"
#include "core/base/hash.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/rl/kl.h"
#include "core/rl/learning_rate.h"
#include "orchestrator/experience.h"
#include "orchestrator/random.h"

namespace quartet {
namespace {

constexpr uint64_t kGeneratePurpose = 3;
constexpr int64_t kSamplesPerStep = 4;
// Optimizer steps in a row whose gradient was not finite before the run gives up.
constexpr int64_t kMaxSkippedInARow = 3;

class Stopwatch {
 public:
  double Seconds() const { return absl::ToDoubleSeconds(absl::Now() - start_); }

 private:
  absl::Time start_ = absl::Now();
};

// Runs `work` on a thread of its own; the seconds it took are in *seconds when the future is ready.
template <typename Work>
auto SideBySide(double* seconds, Work work) {
  return std::async(std::launch::async, [seconds, work = std::move(work)] {
    const Stopwatch stopwatch;
    auto result = work();
    *seconds = stopwatch.Seconds();
    return result;
  });
}

// What the updates of one step came to: means over its optimizer steps.
struct UpdateResult {
  double loss = 0, clip_fraction = 0, entropy = 0, approx_kl = 0, grad_norm = 0, value_mean = 0;
  double micro_batches = 0, balance = 0;
  double learning_rate = 0;  // of the last one
  int64_t skipped = 0;
  uint64_t tokens = 0;  // of all of them
};

// What is said of the policy's and the critic's updates alike. `seconds` of all optimizer steps together.
void AddUpdateMetrics(const std::string& model, const UpdateResult& result, double seconds, Metrics* metrics) {
  metrics->Set(model + "/loss", result.loss);
  metrics->Set(model + "/clip_fraction", result.clip_fraction);
  metrics->Set(model + "/grad_norm", result.grad_norm);
  metrics->Set(model + "/learning_rate", result.learning_rate);
  metrics->Set(model + "/skipped", static_cast<double>(result.skipped));
  metrics->Set(model + "/tokens_per_second", static_cast<double>(result.tokens) / seconds);
  metrics->Set(model + "/micro_batches", result.micro_batches);
  metrics->Set(model + "/balance", result.balance);
  metrics->Set(absl::StrCat("time/", model, "_update"), seconds);
}

// What both trainers' replies have, as one of `n` optimizer steps.
template <typename Reply>
void AddStep(const Reply& reply, double n, UpdateResult* result) {
  result->loss += reply.loss() / n;
  result->clip_fraction += reply.clip_fraction() / n;
  result->grad_norm += reply.grad_norm() / n;
  result->micro_batches += static_cast<double>(reply.micro_batches()) / n;
  result->balance += reply.balance() / n;
  result->skipped += reply.skipped();
  result->tokens += reply.tokens();
}

absl::StatusOr<LearningRateSchedule> MakeSchedule(const TrainerConfig& trainer, const std::string& name,
                                                  int64_t optimizer_steps) {
  absl::StatusOr<LearningRateSchedule> schedule =
      LearningRateSchedule::Create({.peak = trainer.learning_rate(),
                                    .scheduler = trainer.lr_scheduler(),
                                    .warmup_ratio = trainer.lr_warmup_ratio(),
                                    .min_ratio = trainer.min_lr_ratio(),
                                    .total_steps = optimizer_steps});
  if (!schedule.ok()) {
    return absl::Status(schedule.status().code(), absl::StrCat(name, ": ", schedule.status().message()));
  }
  return schedule;
}

int64_t OptimizerSteps(const ServiceInfo& trainer) {
  return trainer.ranks_size() > 0 ? trainer.ranks(0).optimizer_steps() : 0;
}

uint64_t HashPrompts(const std::vector<PromptRecord>& prompts) {
  uint64_t hash = 0;
  for (const PromptRecord& prompt : prompts) {
    hash =
        HashBytes({reinterpret_cast<const char*>(prompt.ids.data()), prompt.ids.size() * sizeof(prompt.ids[0])}, hash);
  }
  return hash;
}

// The state of a run between its steps, and the steps' parts.
class PpoLoop {
 public:
  explicit PpoLoop(const PpoRun& run)
      : run_(run),
        config_(run.config),
        first_step_(run.resume.has_value() ? run.resume->step : 0),
        kl_controller_(FirstKlCoefficient(run), config_.algorithm().kl().kl_target(),
                       config_.algorithm().kl().kl_horizon()) {}

  absl::StatusOr<PpoSummary> Run();

 private:
  // A coefficient that adapts goes on where the checkpoint left it.
  static double FirstKlCoefficient(const PpoRun& run) {
    const KlConfig& kl = run.config.algorithm().kl();
    return run.resume.has_value() && kl.kl_target() > 0 ? run.resume->kl_coefficient : kl.init_kl_coef();
  }

  absl::Status Prepare();
  absl::Status CheckResume(const Hello& hello) const;
  absl::Status Step(int64_t step);

  absl::StatusOr<std::vector<Experience>> Generate(int64_t step);
  absl::Status Annotate(std::vector<Experience>* batch, Metrics* metrics);
  absl::Status CheckLogProbs(int64_t step, const std::vector<Experience>& batch) const;
  absl::Status Update(int64_t step, const std::vector<Experience>& batch, Metrics* metrics);
  absl::StatusOr<UpdateResult> UpdatePolicy(int64_t step,
                                            const std::vector<std::vector<TrainingSequence>>& optimizer_steps);
  absl::StatusOr<UpdateResult> UpdateCritic(int64_t step,
                                            const std::vector<std::vector<TrainingSequence>>& optimizer_steps);
  absl::Status Sync(int64_t step, Metrics* metrics);
  absl::Status Save(int64_t steps_done);
  absl::StatusOr<std::optional<EvaluationResult>> EvaluatePolicy(const std::string& when);
  absl::Status AddServiceMetrics(Metrics* metrics);
  absl::Status Record(int64_t step, const std::vector<Experience>& batch, const Metrics& metrics);

  // What the live line says.
  std::string Label(int64_t step, const std::string& phase) const {
    return absl::StrCat("step ", step, "/", steps_, "  ", phase);
  }
  bool UsesReference() const { return config_.algorithm().kl().init_kl_coef() > 0; }

  const PpoRun& run_;
  const RunConfig& config_;
  const int64_t first_step_;
  KlController kl_controller_;
  std::optional<PromptOrder> order_;
  std::optional<LearningRateSchedule> policy_schedule_, critic_schedule_;
  int64_t steps_ = 0;
  // Of the weights that the policy has now; the rollout must generate with exactly these.
  uint64_t policy_version_ = 0;
  // Where the learning-rate schedules are; skipped steps count.
  int64_t policy_optimizer_steps_ = 0, critic_optimizer_steps_ = 0;
  // What the trainers have applied.
  int64_t policy_applied_ = 0, critic_applied_ = 0;
  int64_t policy_skipped_in_a_row_ = 0, critic_skipped_in_a_row_ = 0;
  PpoSummary summary_;
};

absl::StatusOr<PpoSummary> PpoLoop::Run() {
  QUARTET_RETURN_IF_ERROR(Prepare());
  if (first_step_ > 0) summary_.checkpoint = absl::StrCat("checkpoints/", CheckpointId(first_step_), "/policy");
  if (first_step_ == 0) {
    QUARTET_ASSIGN_OR_RETURN(summary_.before, EvaluatePolicy("before training"));
  } else {
    run_.view.Print(absl::StrFormat("going on after step %d of %d", first_step_, steps_));
  }
  run_.view.Print(absl::StrFormat("%5s %8s %9s %7s %8s | %8s %7s %7s %7s %7s %7s", "step", "reward", "kl", "length",
                                  "diff", "generate", "score", "values", "update", "sync", "step s"));
  for (int64_t step = first_step_; step < steps_; ++step) QUARTET_RETURN_IF_ERROR(Step(step));
  // A weight sync that was lost after the last step would have been noticed by a further step only.
  QUARTET_ASSIGN_OR_RETURN(const ServiceInfo rollout, run_.services.rollout->GetInfo());
  if (rollout.policy_version() != policy_version_) {
    return absl::FailedPreconditionError(absl::StrCat("the rollout ended with policy version ",
                                                      rollout.policy_version(), " instead of ", policy_version_,
                                                      ": a weight sync was lost"));
  }
  summary_.steps = steps_;
  return summary_;
}

absl::Status PpoLoop::Prepare() {
  order_.emplace(config_.seed(), static_cast<int64_t>(run_.prompts.size()));
  steps_ = PpoSteps(config_, static_cast<int64_t>(run_.prompts.size()));
  if (run_.evaluation_set.has_value()) {
    std::vector<HeldoutRecord> records;
    for (const PromptRecord& prompt : run_.evaluation_set->prompts) records.push_back({prompt.text, prompt.label});
    QUARTET_RETURN_IF_ERROR(run_.folder.WriteHeldout(records));
  }

  const int64_t sequences =
      static_cast<int64_t>(config_.rollout().rollout_batch_size()) * config_.rollout().n_samples_per_prompt();
  const int64_t chunk = config_.train().train_batch_size();
  const int64_t optimizer_steps_a_step = config_.algorithm().max_epochs() * ((sequences + chunk - 1) / chunk);
  const int64_t optimizer_steps = steps_ * optimizer_steps_a_step;
  policy_optimizer_steps_ = critic_optimizer_steps_ = first_step_ * optimizer_steps_a_step;
  QUARTET_ASSIGN_OR_RETURN(policy_schedule_, MakeSchedule(config_.actor(), "actor", optimizer_steps));
  QUARTET_ASSIGN_OR_RETURN(critic_schedule_, MakeSchedule(config_.critic(), "critic", optimizer_steps));

  QUARTET_ASSIGN_OR_RETURN(const Hello hello, SayHello(run_.services, config_, run_.tokenizer.vocab_size()));
  policy_applied_ = OptimizerSteps(hello.policy_trainer);
  critic_applied_ = OptimizerSteps(hello.critic_trainer);
  QUARTET_RETURN_IF_ERROR(CheckResume(hello));
  // Fresh services all have the weights from disk, version 0. Services that have worked before, and a policy that goes
  // on from a training state, may not agree.
  policy_version_ = std::max(hello.rollout.policy_version(), hello.policy_trainer.policy_version());
  if (policy_version_ > 0 || hello.policy_trainer.last_applied().sequence() > 0 || policy_applied_ > 0) {
    policy_version_ = std::max(policy_version_ + 1, static_cast<uint64_t>(first_step_));
    run_.view.Begin("bringing the rollout to the policy's weights");
    return SyncWeights(run_.services, 0, policy_version_).status();
  }
  // An orchestrator that was killed during a weight sync has left the rollout paused. (A sync ends a pause, too; before
  // it, a rollout that has released its weights could not go on.)
  return run_.services.rollout->Resume(0);
}

// The run is the one that the checkpoint is of, and the trainers have loaded it.
absl::Status PpoLoop::CheckResume(const Hello& hello) const {
  if (!run_.resume.has_value()) return absl::OkStatus();
  const CheckpointRecord& record = *run_.resume;
  const auto refuse = [&](const std::string& what) {
    return absl::FailedPreconditionError(absl::StrCat("the run cannot go on after ", run_.folder.checkpoints_path(),
                                                      "/", CheckpointId(record.step), ": ", what));
  };
  if (record.seed != config_.seed()) {
    return refuse(absl::StrCat("it was made with seed ", record.seed, ", not ", config_.seed()));
  }
  if (record.rollout_batch_size != config_.rollout().rollout_batch_size()) {
    return refuse(absl::StrCat("it was made with rollout.rollout_batch_size ", record.rollout_batch_size, ", not ",
                               config_.rollout().rollout_batch_size()));
  }
  if (record.prompts_hash != HashPrompts(run_.prompts)) {
    return refuse(absl::StrCat("it was made with other prompts than those of ", config_.data().prompt_data()));
  }
  for (const auto& [info, expected, field] :
       {std::tuple(&hello.policy_trainer, record.policy->optimizer_steps, "actor"),
        std::tuple(&hello.critic_trainer, record.critic->optimizer_steps, "critic")}) {
    if (OptimizerSteps(*info) == expected) continue;
    return refuse(absl::StrCat("the ", info->service(), " has made ", OptimizerSteps(*info),
                               " optimizer steps, the checkpoint ", expected, "; start it with ", field,
                               ".load_checkpoint set to the checkpoint's state, or all services by --launch"));
  }
  return absl::OkStatus();
}

absl::Status PpoLoop::Step(int64_t step) {
  const Stopwatch whole_step;
  Metrics metrics;
  metrics.Set("policy_version", static_cast<double>(policy_version_));

  // 1. Prompts, and n answers to each.
  const Stopwatch generation;
  QUARTET_ASSIGN_OR_RETURN(std::vector<Experience> batch, Generate(step));
  metrics.Set("time/generate", generation.Seconds());

  // 2. Side by side: rewards and reference log-probabilities, values, the policy's own log-probabilities.
  run_.view.Begin(Label(step, "score, values, log-probabilities"));
  QUARTET_RETURN_IF_ERROR(Annotate(&batch, &metrics));

  // 3. The policy that trains and the one that generated must be the same.
  QUARTET_RETURN_IF_ERROR(CheckLogProbs(step, batch));

  // 4. KL, rewards, advantages.
  metrics.Set("kl/coefficient", kl_controller_.coefficient());
  QUARTET_RETURN_IF_ERROR(ComputeAdvantages(config_.algorithm(), kl_controller_.coefficient(), &batch));
  AddExperienceMetrics(batch, &metrics);
  if (const std::optional<double> kl = MeanKl(batch); kl.has_value()) {
    kl_controller_.Update(*kl, static_cast<int64_t>(batch.size()));
  }

  // 5. Policy and critic learn, side by side.
  run_.view.Begin(Label(step, "policy and critic update"));
  QUARTET_RETURN_IF_ERROR(Update(step, batch, &metrics));

  // 6. The rollout gets the new weights.
  const Stopwatch sync;
  run_.view.Begin(Label(step, "weight sync"));
  QUARTET_RETURN_IF_ERROR(Sync(step, &metrics));
  metrics.Set("time/weight_sync", sync.Seconds());

  // 7. Checkpoints and evaluation.
  const int64_t steps_done = step + 1;
  const bool last = steps_done == steps_;
  const int64_t save_steps = config_.train().save_steps();
  if (last || (save_steps > 0 && steps_done % save_steps == 0)) {
    const Stopwatch saving;
    run_.view.Begin(Label(step, "checkpoint"));
    QUARTET_RETURN_IF_ERROR(Save(steps_done));
    metrics.Set("time/checkpoint", saving.Seconds());
  }
  const int64_t eval_steps = config_.eval().eval_steps();
  std::optional<EvaluationResult> evaluation = step == 0 ? summary_.before : std::nullopt;
  if (last || (eval_steps > 0 && steps_done % eval_steps == 0)) {
    QUARTET_ASSIGN_OR_RETURN(evaluation, EvaluatePolicy(absl::StrCat("after step ", step)));
    if (last) summary_.after = evaluation;
  }
  if (evaluation.has_value()) {
    const std::string prefix = absl::StrCat("eval/", run_.evaluation_set->name, "/");
    if (evaluation->pass_at_1.has_value()) metrics.Set(prefix + "pass@1", *evaluation->pass_at_1);
    metrics.Set(prefix + "reward", evaluation->mean_reward);
  }

  // 8. Record.
  metrics.Set("time/step", whole_step.Seconds());
  QUARTET_RETURN_IF_ERROR(AddServiceMetrics(&metrics));
  return Record(step, batch, metrics);
}

absl::StatusOr<std::vector<Experience>> PpoLoop::Generate(int64_t step) {
  const RolloutConfig& rollout = config_.rollout();
  const int64_t samples = rollout.n_samples_per_prompt();
  const std::vector<int64_t> indices = order_->Take(step * rollout.rollout_batch_size(), rollout.rollout_batch_size());
  std::vector<Prompt> prompts(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::vector<int32_t>& ids = run_.prompts[indices[i]].ids;
    prompts[i].set_index(i);
    prompts[i].mutable_ids()->Assign(ids.begin(), ids.end());
  }
  GenerateHeader header;
  header.set_policy_version(policy_version_);
  SamplingParams* sampling = header.mutable_sampling();
  sampling->set_temperature(rollout.temperature());
  sampling->set_top_p(rollout.top_p());
  sampling->set_top_k(rollout.top_k());
  sampling->set_max_new_tokens(rollout.generate_max_len());
  sampling->set_min_tokens(rollout.min_tokens());
  *sampling->mutable_stop_token_ids() = rollout.stop_token_ids();
  sampling->set_seed(Random::Of({config_.seed(), kGeneratePurpose, static_cast<uint64_t>(step)}).Next());
  sampling->set_n_samples(static_cast<int32_t>(samples));

  run_.view.Begin(Label(step, "generate"), static_cast<int64_t>(prompts.size()) * samples);
  QUARTET_ASSIGN_OR_RETURN(
      std::vector<GeneratedSequence> generated,
      run_.services.rollout->Generate(header, prompts, [this](int64_t done) { run_.view.Progress(done); }));

  std::vector<Experience> batch(generated.size());
  for (size_t i = 0; i < generated.size(); ++i) {
    Experience& e = batch[i];
    e.prompt = indices[i / samples];
    e.tokens = std::move(*generated[i].mutable_tokens());
    e.tokens.set_index(i);
    e.response = DecodeResponse(e.tokens, run_.tokenizer);
    e.truncated = generated[i].finish_reason() == GeneratedSequence::LENGTH;
    e.rollout_log_probs.assign(generated[i].log_probs().begin(), generated[i].log_probs().end());
  }
  return batch;
}

absl::Status PpoLoop::Annotate(std::vector<Experience>* batch, Metrics* metrics) {
  Services& services = run_.services;
  const float temperature = config_.rollout().temperature();
  std::vector<TokenSequence> sequences;
  std::vector<ScoreItem> items;
  for (const Experience& e : *batch) {
    sequences.push_back(e.tokens);
    ScoreItem& item = items.emplace_back();
    *item.mutable_tokens() = e.tokens;
    item.set_response(e.response);
    item.set_label(run_.prompts[e.prompt].label);
    item.set_truncated(e.truncated);
  }

  double score_seconds = 0, reference_seconds = 0, values_seconds = 0, log_probs_seconds = 0;
  auto scores = SideBySide(&score_seconds, [&] { return services.scorer->Score(items); });
  auto reference = SideBySide(&reference_seconds, [&]() -> absl::StatusOr<std::vector<std::vector<float>>> {
    // Without a KL penalty there is no reference model to ask.
    if (!UsesReference()) return std::vector<std::vector<float>>(sequences.size());
    return services.scorer->ReferenceLogProbs(temperature, sequences);
  });
  auto values = SideBySide(&values_seconds, [&] { return services.critic_trainer->Values(sequences); });
  auto log_probs =
      SideBySide(&log_probs_seconds, [&] { return services.policy_trainer->LogProbs(temperature, sequences); });
  // All are waited for before any error is returned: they use what lies on this stack.
  auto scored = scores.get();
  auto reference_done = reference.get();
  auto values_done = values.get();
  auto log_probs_done = log_probs.get();
  QUARTET_RETURN_IF_ERROR(scored.status());
  QUARTET_RETURN_IF_ERROR(reference_done.status());
  QUARTET_RETURN_IF_ERROR(values_done.status());
  QUARTET_RETURN_IF_ERROR(log_probs_done.status());

  for (size_t i = 0; i < batch->size(); ++i) {
    Experience& e = (*batch)[i];
    e.reward = (*scored)[i].reward();
    e.reward_parts.insert((*scored)[i].parts().begin(), (*scored)[i].parts().end());
    e.reference_log_probs = std::move((*reference_done)[i]);
    e.values = std::move((*values_done)[i]);
    e.log_probs = std::move((*log_probs_done)[i]);
  }
  metrics->Set("time/score", std::max(score_seconds, reference_seconds));
  metrics->Set("time/values", values_seconds);
  metrics->Set("time/log_probs", log_probs_seconds);
  return absl::OkStatus();
}

absl::Status PpoLoop::CheckLogProbs(int64_t step, const std::vector<Experience>& batch) const {
  const LogProbDifference difference = CompareLogProbs(batch);
  const double limit = config_.train().max_log_prob_diff_mean();
  if (difference.mean <= limit) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "step %d: log-probabilities of the policy trainer and the rollout differ by %.4g on average (99th percentile "
      "%.4g, largest %.4g), more than train.max_log_prob_diff_mean (%g): they do not have the same weights, or not the "
      "same model",
      step, difference.mean, difference.p99, difference.max, limit));
}

absl::Status PpoLoop::Update(int64_t step, const std::vector<Experience>& batch, Metrics* metrics) {
  std::vector<std::vector<TrainingSequence>> optimizer_steps;
  for (int64_t epoch = 0; epoch < config_.algorithm().max_epochs(); ++epoch) {
    QUARTET_ASSIGN_OR_RETURN(auto chunks, MakeOptimizerSteps(config_, batch, step, epoch));
    std::move(chunks.begin(), chunks.end(), std::back_inserter(optimizer_steps));
  }
  double policy_seconds = 0, critic_seconds = 0;
  auto policy_future = SideBySide(&policy_seconds, [&] { return UpdatePolicy(step, optimizer_steps); });
  auto critic_future = SideBySide(&critic_seconds, [&] { return UpdateCritic(step, optimizer_steps); });
  auto policy_done = policy_future.get();
  auto critic_done = critic_future.get();
  QUARTET_ASSIGN_OR_RETURN(const UpdateResult policy, policy_done);
  QUARTET_ASSIGN_OR_RETURN(const UpdateResult critic, critic_done);
  AddUpdateMetrics("policy", policy, policy_seconds, metrics);
  metrics->Set("policy/entropy", policy.entropy);
  metrics->Set("policy/approx_kl", policy.approx_kl);
  AddUpdateMetrics("critic", critic, critic_seconds, metrics);
  metrics->Set("critic/value_mean", critic.value_mean);
  return absl::OkStatus();
}

// Counts an optimizer step whose gradient was not finite; several in a row end the run.
absl::Status CountSkipped(const std::string& model, bool skipped, double loss, int64_t* in_a_row) {
  if (!skipped) {
    *in_a_row = 0;
    if (std::isfinite(loss)) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the ", model, "'s loss is not finite, but its step was not skipped"));
  }
  QUARTET_LOG(kWarning) << "the gradient of the " << model << " was not finite; all ranks skipped the optimizer step";
  if (++*in_a_row < kMaxSkippedInARow) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the gradient of the ", model, " was not finite ", *in_a_row,
                                                    " optimizer steps in a row; lower ",
                                                    model == "policy" ? "actor" : model, ".learning_rate"));
}

absl::StatusOr<UpdateResult> PpoLoop::UpdatePolicy(int64_t step,
                                                   const std::vector<std::vector<TrainingSequence>>& optimizer_steps) {
  const AlgorithmConfig& algorithm = config_.algorithm();
  UpdateResult result;
  const double n = static_cast<double>(optimizer_steps.size());
  for (const std::vector<TrainingSequence>& sequences : optimizer_steps) {
    PolicyUpdateHeader header;
    header.set_temperature(config_.rollout().temperature());
    header.mutable_loss()->set_kind(PolicyLossConfig::KIND_PPO);
    header.mutable_loss()->set_eps_clip_low(algorithm.eps_clip_low());
    header.mutable_loss()->set_eps_clip_high(algorithm.eps_clip_high());
    header.mutable_loss()->set_dual_clip(algorithm.dual_clip());
    header.set_learning_rate(policy_schedule_->At(++policy_optimizer_steps_));
    QUARTET_ASSIGN_OR_RETURN(const PolicyUpdateReply reply,
                             run_.services.policy_trainer->Update(step, header, sequences));
    policy_applied_ = static_cast<int64_t>(reply.optimizer_steps());
    QUARTET_RETURN_IF_ERROR(CountSkipped("policy", reply.skipped(), reply.loss(), &policy_skipped_in_a_row_));
    AddStep(reply, n, &result);
    result.entropy += reply.entropy() / n;
    result.approx_kl += reply.approx_kl() / n;
    result.learning_rate = header.learning_rate();
  }
  return result;
}

absl::StatusOr<UpdateResult> PpoLoop::UpdateCritic(int64_t step,
                                                   const std::vector<std::vector<TrainingSequence>>& optimizer_steps) {
  UpdateResult result;
  const double n = static_cast<double>(optimizer_steps.size());
  for (const std::vector<TrainingSequence>& sequences : optimizer_steps) {
    CriticUpdateHeader header;
    header.set_value_clip(config_.algorithm().value_clip());
    header.set_learning_rate(critic_schedule_->At(++critic_optimizer_steps_));
    QUARTET_ASSIGN_OR_RETURN(const CriticUpdateReply reply,
                             run_.services.critic_trainer->Update(step, header, sequences));
    critic_applied_ = static_cast<int64_t>(reply.optimizer_steps());
    QUARTET_RETURN_IF_ERROR(CountSkipped("critic", reply.skipped(), reply.loss(), &critic_skipped_in_a_row_));
    AddStep(reply, n, &result);
    result.value_mean += reply.value_mean() / n;
    result.learning_rate = header.learning_rate();
  }
  return result;
}

absl::Status PpoLoop::Sync(int64_t step, Metrics* metrics) {
  // The policy has changed, so its version has, whatever becomes of the transfer.
  ++policy_version_;
  if (FailPointArmed("orchestrator.weight_sync.skip")) return absl::OkStatus();
  QUARTET_ASSIGN_OR_RETURN(const double paused_seconds,
                           SyncWeights(run_.services, static_cast<uint64_t>(step), policy_version_));
  metrics->Set("time/weight_sync_pause", paused_seconds);
  return absl::OkStatus();
}

absl::Status PpoLoop::Save(int64_t steps_done) {
  const std::string id = CheckpointId(steps_done);
  const auto step = static_cast<uint64_t>(steps_done);
  const bool save_optimizer = config_.train().save_optimizer();
  // The critic is of use only to a run that goes on.
  double ignored_seconds = 0;
  auto critic_future = SideBySide(&ignored_seconds, [&]() -> absl::StatusOr<SaveCheckpointReply> {
    if (!save_optimizer) return SaveCheckpointReply();
    return run_.services.critic_trainer->SaveCheckpoint(step, id, save_optimizer);
  });
  const auto policy_done = run_.services.policy_trainer->SaveCheckpoint(step, id, save_optimizer);
  const auto critic_done = critic_future.get();
  QUARTET_ASSIGN_OR_RETURN(const SaveCheckpointReply policy, policy_done);
  QUARTET_ASSIGN_OR_RETURN(const SaveCheckpointReply critic, critic_done);

  const std::string root = run_.folder.checkpoints_path() + "/";
  for (const std::string& folder : {policy.folder(), policy.state_folder(), critic.folder(), critic.state_folder()}) {
    std::error_code error;
    if (folder.empty() || std::filesystem::exists(root + folder, error)) continue;
    QUARTET_LOG(kWarning) << "a trainer saved " << folder << " in its own run_dir, not in " << run_.folder.path()
                          << ": give all programs the same run_dir to have checkpoints together and to continue a run";
    return absl::OkStatus();
  }
  CheckpointRecord record;
  record.step = steps_done;
  record.kl_coefficient = kl_controller_.coefficient();
  record.seed = config_.seed();
  record.rollout_batch_size = config_.rollout().rollout_batch_size();
  record.prompts_hash = HashPrompts(run_.prompts);
  if (save_optimizer) {
    record.policy = SavedTrainer{policy.state_hash(), policy_applied_};
    record.critic = SavedTrainer{critic.state_hash(), critic_applied_};
  }
  QUARTET_RETURN_IF_ERROR(WriteCheckpointRecord(root + id, record));
  QUARTET_RETURN_IF_ERROR(run_.folder.PointLatestAt(id));
  summary_.checkpoint = absl::StrCat("checkpoints/", policy.folder());
  return run_.folder.RemoveOldCheckpoints(config_.train().max_ckpt_num());
}

absl::StatusOr<std::optional<EvaluationResult>> PpoLoop::EvaluatePolicy(const std::string& when) {
  if (!run_.evaluation_set.has_value()) return std::nullopt;
  run_.view.Begin(absl::StrCat("evaluation ", when), static_cast<int64_t>(run_.evaluation_set->prompts.size()));
  QUARTET_ASSIGN_OR_RETURN(const EvaluationResult result,
                           Evaluate(config_, *run_.evaluation_set, policy_version_, run_.tokenizer, run_.services,
                                    [this](int64_t done) { run_.view.Progress(done); }));
  run_.view.Print(result.pass_at_1.has_value()
                      ? absl::StrFormat("evaluation %s: %.1f %% of %d answers are right", when, 100 * *result.pass_at_1,
                                        run_.evaluation_set->prompts.size())
                      : absl::StrFormat("evaluation %s: mean reward %.4f of %d answers", when, result.mean_reward,
                                        run_.evaluation_set->prompts.size()));
  return result;
}

absl::Status PpoLoop::AddServiceMetrics(Metrics* metrics) {
  const std::vector<ServiceClient*> clients = {run_.services.rollout.get(), run_.services.policy_trainer.get(),
                                               run_.services.critic_trainer.get(), run_.services.scorer.get()};
  for (ServiceClient* client : clients) {
    QUARTET_ASSIGN_OR_RETURN(const ServiceInfo info, client->GetInfo());
    std::map<std::string, int64_t> peaks;
    for (const RankInfo& rank : info.ranks()) {
      for (const MemoryUse& use : rank.memory()) {
        int64_t& peak = peaks[use.tier() == "host" ? "host/" + use.category() : use.category()];
        peak = std::max(peak, use.peak_bytes());
      }
      for (const MemoryTotal& total : rank.memory_totals()) {
        if (total.tier() == "host" && total.peak_bytes() == 0) continue;
        int64_t& peak = peaks[total.tier() == "host" ? "host/total" : "total"];
        peak = std::max(peak, total.peak_bytes());
      }
      peaks["process"] = std::max(peaks["process"], rank.peak_rss_bytes());
    }
    for (const auto& [category, bytes] : peaks) {
      metrics->Set(absl::StrCat("memory/", client->service(), "/", category), static_cast<double>(bytes));
    }
    for (const auto& [name, value] : info.metrics()) metrics->Set(name, value);
  }
  return absl::OkStatus();
}

absl::Status PpoLoop::Record(int64_t step, const std::vector<Experience>& batch, const Metrics& metrics) {
  QUARTET_RETURN_IF_ERROR(run_.folder.WriteMetrics(step, metrics));
  // Samples of different prompts, from the whole batch.
  std::vector<SampleRecord> samples;
  const int64_t count = std::min<int64_t>(kSamplesPerStep, static_cast<int64_t>(batch.size()));
  for (int64_t i = 0; i < count; ++i) {
    const Experience& e = batch[i * batch.size() / count];
    SampleRecord& sample = samples.emplace_back();
    sample.step = step;
    sample.prompt = run_.prompts[e.prompt].text;
    sample.response = e.response;
    sample.label = run_.prompts[e.prompt].label;
    sample.reward = e.reward;
    sample.parts = e.reward_parts;
    sample.kl = MeanKl({e});
    sample.finish_reason = e.truncated ? "length" : "stop";
  }
  QUARTET_RETURN_IF_ERROR(run_.folder.WriteSamples(samples));

  const auto value = [&metrics](const char* name) { return metrics.Get(name).value_or(0); };
  const std::optional<double> kl = metrics.Get("kl/mean");
  summary_.mean_rewards.push_back(value("reward/mean"));
  run_.view.Print(absl::StrFormat("%5d %8.4f %9s %7.1f %8.1e | %8.2f %7.2f %7.2f %7.2f %7.2f %7.2f", step,
                                  value("reward/mean"), kl.has_value() ? absl::StrFormat("%9.5f", *kl) : "-",
                                  value("response_length/mean"), value("rollout/log_prob_diff_mean"),
                                  value("time/generate"), value("time/score"), value("time/values"),
                                  std::max(value("time/policy_update"), value("time/critic_update")),
                                  value("time/weight_sync"), value("time/step")));
  return absl::OkStatus();
}

}  // namespace

int64_t PpoSteps(const RunConfig& config, int64_t prompts) {
  if (config.train().max_steps() > 0) return config.train().max_steps();
  const int64_t batch = config.rollout().rollout_batch_size();
  return std::max<int64_t>(1, (prompts * config.train().num_episodes() + batch - 1) / batch);
}

absl::StatusOr<double> SyncWeights(Services& services, uint64_t step, uint64_t version) {
  RolloutClient& rollout = *services.rollout;
  QUARTET_ASSIGN_OR_RETURN(const PublishReply published, services.policy_trainer->Publish(step, version));
  double paused_seconds = 0;
  absl::Status status = rollout.BeginUpdate(step, published.manifest()).status();
  if (status.ok()) {
    const Stopwatch pause;
    status = rollout.Pause(step, PauseRequest::KEEP).status();
    if (status.ok()) status = rollout.CommitUpdate(step, version).status();
    // Also where Pause failed: it may have come into effect before its answer was lost.
    const absl::Status resumed = rollout.Resume(step);
    paused_seconds = pause.Seconds();
    if (!resumed.ok() && !status.ok()) {
      QUARTET_LOG(kWarning) << "the rollout may still be paused: " << resumed.message();
    } else if (!resumed.ok()) {
      status = absl::Status(resumed.code(),
                            absl::StrCat(resumed.message(), "; it has version ", version, ", and is still paused"));
    }
  }
  if (!status.ok()) {
    if (absl::Status aborted = rollout.AbortUpdate(step); !aborted.ok()) {
      QUARTET_LOG(kWarning) << "while giving up a weight sync: " << aborted.message();
    }
    return status;
  }
  return paused_seconds;
}

absl::StatusOr<PpoSummary> RunPpo(const PpoRun& run) {
  absl::StatusOr<PpoSummary> summary = PpoLoop(run).Run();
  run.view.End();
  return summary;
}

}  // namespace quartet

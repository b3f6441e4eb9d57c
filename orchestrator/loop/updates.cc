#include "orchestrator/loop/updates.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/side_by_side.h"
#include "core/config/batches/updates.h"
#include "core/rl/options/policy_losses.h"
#include "orchestrator/checks/start_check.h"
#include "orchestrator/loop/experience/policy_loss.h"

namespace quartet {
namespace {

// Optimizer steps in a row whose gradient was not finite before the run gives up.
constexpr int64_t kMaxSkippedInARow = 3;

// What the updates of one PPO step came to: means over its optimizer steps.
struct Result {
  double loss = 0, clip_fraction = 0, grad_norm = 0;
  // Of the policy.
  double entropy = 0, approx_kl = 0, kl_loss = 0;
  double correction_clipped = 0, correction_masked = 0, effective_sample_size = 0;
  double value_mean = 0;  // of the critic
  double micro_batches = 0, balance = 0;
  double learning_rate = 0;  // of the last one
  int64_t skipped = 0;
  uint64_t tokens = 0, computed_tokens = 0;  // of all of them
};

// What is said of the policy's and the critic's updates alike. `seconds` of all optimizer steps together.
void AddMetrics(const std::string& model, const Result& result, double seconds, Metrics* metrics) {
  metrics->Set(model + "/loss", result.loss);
  metrics->Set(model + "/clip_fraction", result.clip_fraction);
  metrics->Set(model + "/grad_norm", result.grad_norm);
  metrics->Set(model + "/learning_rate", result.learning_rate);
  metrics->Set(model + "/skipped", static_cast<double>(result.skipped));
  metrics->Set(model + "/tokens_per_second", static_cast<double>(result.tokens) / seconds);
  if (result.tokens > 0) {
    metrics->Set(model + "/shared_tokens",
                 1 - static_cast<double>(result.computed_tokens) / static_cast<double>(result.tokens));
  }
  metrics->Set(model + "/micro_batches", result.micro_batches);
  metrics->Set(model + "/balance", result.balance);
  metrics->Set(absl::StrCat("time/", model, "_update"), seconds);
}

void AddOwn(const PolicyUpdateReply& reply, double n, Result* result) {
  result->entropy += reply.entropy() / n;
  result->approx_kl += reply.approx_kl() / n;
  result->kl_loss += reply.kl_loss() / n;
  result->correction_clipped += reply.correction_clipped() / n;
  result->correction_masked += reply.correction_masked() / n;
  result->effective_sample_size += reply.effective_sample_size() / n;
}
void AddOwn(const CriticUpdateReply& reply, double n, Result* result) { result->value_mean += reply.value_mean() / n; }

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

// One trainer's optimizer steps over the batch. `header` is theirs, but for the learning rate.
template <typename Client, typename Header>
absl::StatusOr<Result> Update(const RunConfig& config, const std::string& model, Client& client, int64_t step,
                              Header header, const std::vector<Experience>& batch,
                              const std::vector<TrainingArray>& arrays, Updates::Trainer* trainer) {
  std::vector<OptimizerStep> optimizer_steps;
  for (int64_t epoch = 0; epoch < trainer->epochs; ++epoch) {
    QUARTET_ASSIGN_OR_RETURN(auto of_epoch, CutIntoOptimizerSteps(config, batch, step, epoch, trainer->steps_an_epoch));
    std::move(of_epoch.begin(), of_epoch.end(), std::back_inserter(optimizer_steps));
  }
  Result result;
  const auto n = static_cast<double>(std::count_if(optimizer_steps.begin(), optimizer_steps.end(),
                                                   [](const auto& step) { return !step.positions.empty(); }));
  for (const OptimizerStep& of_step : optimizer_steps) {
    header.set_learning_rate(trainer->schedule.At(++trainer->sent));
    if (of_step.positions.empty()) continue;  // all of its answers are out of the loss
    QUARTET_ASSIGN_OR_RETURN(const auto reply, client.Update(static_cast<uint64_t>(step), header,
                                                             MakeTrainingSequences(batch, arrays, of_step)));
    trainer->applied = static_cast<int64_t>(reply.optimizer_steps());
    QUARTET_RETURN_IF_ERROR(CountSkipped(model, reply.skipped(), reply.loss(), &trainer->skipped_in_a_row));
    result.loss += reply.loss() / n;
    result.clip_fraction += reply.clip_fraction() / n;
    result.grad_norm += reply.grad_norm() / n;
    result.micro_batches += static_cast<double>(reply.micro_batches()) / n;
    result.balance += reply.balance() / n;
    result.skipped += reply.skipped();
    result.tokens += reply.tokens();
    result.computed_tokens += reply.computed_tokens();
    result.learning_rate = header.learning_rate();
    AddOwn(reply, n, &result);
  }
  return result;
}

}  // namespace

absl::StatusOr<Updates> Updates::Create(const RunConfig& config, Services& services, MemoryTurns& memory,
                                        const Handshake& handshake, int64_t steps, int64_t steps_done) {
  const AlgorithmConfig& algorithm = config.algorithm();
  const auto make = [&](const TrainerConfig& section, int64_t epochs, int64_t steps_an_epoch, int64_t warmup_steps,
                        const ServiceInfo& info) -> absl::StatusOr<Trainer> {
    const int64_t a_step = epochs * steps_an_epoch;
    QUARTET_ASSIGN_OR_RETURN(
        const LearningRateSchedule schedule,
        LearningRateSchedule::Create(section, std::max<int64_t>(1, steps - warmup_steps) * a_step));
    return Trainer{.schedule = schedule,
                   .epochs = epochs,
                   .steps_an_epoch = steps_an_epoch,
                   .sent = std::max<int64_t>(0, steps_done - warmup_steps) * a_step,
                   .applied = OptimizerSteps(info)};
  };
  QUARTET_ASSIGN_OR_RETURN(const Trainer policy, make(config.actor(), algorithm.max_epochs(), UpdatesPerBatch(config),
                                                      algorithm.critic_warmup_steps(), handshake.policy_trainer));
  std::optional<Trainer> critic;
  if (handshake.critic_trainer.has_value()) {
    QUARTET_ASSIGN_OR_RETURN(critic, make(config.critic(), algorithm.critic_epochs(), CriticUpdatesPerBatch(config), 0,
                                          *handshake.critic_trainer));
  }
  return Updates(config, services, memory, policy, critic);
}

bool Updates::TrainsPolicy(int64_t step) const { return step >= config_->algorithm().critic_warmup_steps(); }

std::optional<int64_t> Updates::critic_applied() const {
  return critic_.has_value() ? std::optional<int64_t>(critic_->applied) : std::nullopt;
}

absl::Status Updates::Run(int64_t step, const std::vector<Experience>& batch, double kl_coefficient, Metrics* metrics) {
  const AlgorithmConfig& algorithm = config_->algorithm();
  PolicyUpdateHeader policy_header;
  policy_header.set_temperature(config_->rollout().temperature());
  policy_header.set_entropy_after_temperature(algorithm.entropy_after_temperature());
  *policy_header.mutable_loss() = PolicyLossOf(algorithm, kl_coefficient);
  policy_header.mutable_loss()->set_own_old_log_probs(TakesOwnOldLogProbs(*config_));
  CriticUpdateHeader critic_header;
  critic_header.set_value_clip(algorithm.value_clip());

  double policy_seconds = 0, critic_seconds = 0;
  const auto update_policy = [&]() -> absl::StatusOr<Result> {
    Result result;
    if (TrainsPolicy(step)) {
      QUARTET_ASSIGN_OR_RETURN(result, Update(*config_, "policy", *services_->policy_trainer, step, policy_header,
                                              batch, PolicyArrays(*config_, policy_header.loss()), &policy_));
    }
    QUARTET_RETURN_IF_ERROR(memory_->RestPolicy());
    return result;
  };
  const auto update_critic = [&]() -> absl::StatusOr<Result> {
    if (!critic_.has_value()) return Result();
    return Update(*config_, "critic", *services_->critic_trainer, step, critic_header, batch, CriticArrays(),
                  &*critic_);
  };
  const bool in_turn = memory_->trainers_in_turn();
  auto policy_future = SideBySide(&policy_seconds, update_policy, in_turn);
  auto critic_future = SideBySide(&critic_seconds, update_critic, in_turn);
  const auto policy_done = policy_future.get();
  if (in_turn) QUARTET_RETURN_IF_ERROR(policy_done.status());
  const auto critic_done = critic_future.get();
  QUARTET_ASSIGN_OR_RETURN(const Result policy, policy_done);
  QUARTET_ASSIGN_OR_RETURN(const Result critic, critic_done);
  if (TrainsPolicy(step)) {
    AddMetrics("policy", policy, policy_seconds, metrics);
    metrics->Set("policy/entropy", policy.entropy);
    const bool corrects = algorithm.importance_correction().mode() != "off";
    // Without a ratio no old log-probability is there to compare with.
    const bool has_ratio = FindPolicyLoss(algorithm.policy_loss())->has_ratio;
    if (has_ratio || corrects) metrics->Set("policy/approx_kl", policy.approx_kl);
    if (algorithm.kl().use_kl_loss()) metrics->Set("policy/kl_loss", policy.kl_loss);
    if (corrects) {
      metrics->Set("correction/clipped", policy.correction_clipped);
      metrics->Set("correction/masked", policy.correction_masked);
      metrics->Set("correction/effective_sample_size", policy.effective_sample_size);
    }
  }
  if (!critic_.has_value()) return absl::OkStatus();
  AddMetrics("critic", critic, critic_seconds, metrics);
  metrics->Set("critic/value_mean", critic.value_mean);
  return absl::OkStatus();
}

}  // namespace quartet

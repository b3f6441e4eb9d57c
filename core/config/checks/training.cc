#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/config/batches/updates.h"
#include "core/config/checks/checks.h"
#include "core/config/conditions.h"
#include "core/config/services.h"
#include "core/config/step_range.h"
#include "core/zero/optimizer/optimizer_options.h"

namespace quartet {
namespace {

// Where a trainer's state is, and when it is exchanged.
absl::Status CheckSharding(const std::string& name, const TrainerConfig& t) {
  const auto field = [&name](absl::string_view leaf) { return absl::StrCat(name, ".", leaf); };
  const std::string stage = absl::StrCat(field("zero_stage"), " is ", t.zero_stage());
  if (t.zero_stage() == 0 && t.adam_offload()) {
    return Bad(field("adam_offload"), "true",
               absl::StrCat(stage, ", where every rank would update the whole model on its host; it needs 2 or 3"));
  }
  if (t.sleep_offload() && t.adam_offload()) {
    return Bad(
        field("sleep_offload"), "true",
        absl::StrCat(field("adam_offload"),
                     " is set, so that the optimizer state is in host memory all the time; leave one of them out"));
  }
  if (t.offload_param() && t.zero_stage() != 3) {
    return Bad(field("offload_param"), "true",
               absl::StrCat(stage, ", where all parameters stay on the device; it needs 3"));
  }
  if (t.offload_param() && !t.adam_offload()) {
    return Bad(field("offload_param"), "true",
               absl::StrCat("the optimizer, which updates the parameters, would stay on the device: set ",
                            field("adam_offload"), " too"));
  }
  return absl::OkStatus();
}

absl::Status CheckTrainer(const std::string& name, const TrainerConfig& t) {
  const auto field = [&name](absl::string_view leaf) { return absl::StrCat(name, ".", leaf); };
  if (t.has_learning_rate() && t.learning_rate() == 0 && !t.allow_zero_learning_rate()) {
    return Bad(field("learning_rate"), "0",
               absl::StrCat("nothing would be learned; if that is meant (a baseline), set ",
                            field("allow_zero_learning_rate"), ": true"));
  }
  std::vector<std::string> optimizers;
  for (const OptimizerTraits& optimizer : Optimizers()) optimizers.emplace_back(optimizer.name);
  QUARTET_RETURN_IF_ERROR(OneOf(field("optim"), t.optim(), optimizers));
  QUARTET_RETURN_IF_ERROR(CheckSharding(name, t));
  if (t.max_tokens_per_micro_batch() == 0) return absl::OkStatus();
  if (t.has_micro_train_batch_size()) return BothLimits(name, "micro_train_batch_size");
  if (t.has_micro_rollout_batch_size()) return BothLimits(name, "micro_rollout_batch_size");
  return TokenBudget(field("max_tokens_per_micro_batch"), t.max_tokens_per_micro_batch(), field("max_len"),
                     t.max_len());
}

}  // namespace

absl::Status CheckTrainers(const RunConfig& c) {
  QUARTET_RETURN_IF_ERROR(CheckTrainer("actor", c.actor()));
  return UsesCritic(c) ? CheckTrainer("critic", c.critic()) : absl::OkStatus();
}

absl::Status CheckTrain(const RunConfig& c) {
  const TrainConfig& t = c.train();
  if (!t.trace_steps().empty()) {
    QUARTET_RETURN_IF_ERROR(ParseStepRange("train.trace_steps", t.trace_steps()).status());
  }
  if (t.save_on_sigterm() && !t.save_optimizer()) {
    return Bad("train.save_optimizer", "false",
               "train.save_on_sigterm makes checkpoints that a run goes on after: it must be true, or not set");
  }
  return absl::OkStatus();
}

absl::Status CheckTrainBatches(const RunConfig& c) {
  const TrainConfig& t = c.train();
  const int64_t sequences = SequencesPerBatch(c);
  const auto bad_for_batch = [&](absl::string_view field, int32_t value, absl::string_view rule) {
    return Bad(
        field, absl::StrCat(value),
        absl::StrCat(rule, " rollout.rollout_batch_size * rollout.n_samples_per_prompt = ",
                     c.rollout().rollout_batch_size(), " * ", c.rollout().n_samples_per_prompt(), " = ", sequences));
  };
  const auto check_count = [&](absl::string_view field, int32_t value) -> absl::Status {
    return value <= sequences ? absl::OkStatus() : bad_for_batch(field, value, "it must be at most");
  };
  if (t.has_updates_per_batch()) {
    QUARTET_RETURN_IF_ERROR(check_count("train.updates_per_batch", t.updates_per_batch()));
  } else if (sequences % t.train_batch_size() != 0) {
    return bad_for_batch("train.train_batch_size", t.train_batch_size(), "it must divide");
  }
  if (t.has_critic_updates_per_batch()) {
    QUARTET_RETURN_IF_ERROR(check_count("train.critic_updates_per_batch", t.critic_updates_per_batch()));
  } else if (UsesCritic(c)) {
    // The last of its optimizer steps may have fewer: recipes count the critic's steps, not their sequences.
    QUARTET_RETURN_IF_ERROR(
        Integer("train.critic_train_batch_size", t.critic_train_batch_size(), 1, std::max<int64_t>(1, sequences)));
  }
  return absl::OkStatus();
}

}  // namespace quartet

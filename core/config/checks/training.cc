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
#include "core/config/checks/conditions.h"
#include "core/config/services.h"
#include "core/zero/optimizer/optimizer_options.h"

namespace quartet {
namespace {

// Where a trainer's state is, and when it is exchanged.
absl::Status CheckSharding(const std::string& name, const TrainerConfig& t) {
  const auto field = [&name](absl::string_view leaf) { return absl::StrCat(name, ".", leaf); };
  const std::string stage = absl::StrCat(field("zero_stage"), " is ", t.zero_stage());
  QUARTET_RETURN_IF_ERROR(Integer(field("shard_size"), t.shard_size(), 0));
  if (t.zero_stage() == 0 && t.adam_offload()) {
    return Bad(field("adam_offload"), "true",
               absl::StrCat(stage, ", where every rank would update the whole model on its host; it needs 2 or 3"));
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
  return Below(field("ema_decay"), t.ema_decay(), 1);
}

// The optimizer and its options, and that no other one's are set.
absl::Status CheckOptimizer(const std::string& name, const TrainerConfig& t) {
  const auto field = [&name](std::string_view leaf) { return absl::StrCat(name, ".", std::string(leaf)); };
  std::vector<std::string> names;
  for (const OptimizerTraits& optimizer : Optimizers()) names.emplace_back(optimizer.name);
  QUARTET_RETURN_IF_ERROR(OneOf(field("optim"), t.optim(), names));
  const OptimizerTraits& chosen = *FindOptimizer(t.optim());
  for (const OptimizerTraits& other : Optimizers()) {
    for (const OptimizerOption& option : other.options) {
      if (!option.IsSetIn(t) || chosen.Has(option.field)) continue;
      return NoEffect(field(option.field), absl::StrCat(field("optim"), " is \"", t.optim(), "\""));
    }
  }
  for (const OptimizerOption& option : chosen.options) {
    const double value = option.In(t);
    QUARTET_RETURN_IF_ERROR(option.range == OptimizerOption::Range::kBelowOne
                                ? Below(field(option.field), value, 1)
                                : Real(field(option.field), value, 0, kInfinity, /*open_low=*/true));
  }
  return Real(field("weight_decay"), t.weight_decay(), 0, kInfinity);
}

absl::Status CheckTrainer(const std::string& name, const TrainerConfig& t) {
  const auto field = [&name](absl::string_view leaf) { return absl::StrCat(name, ".", leaf); };
  QUARTET_RETURN_IF_ERROR(Stage(field("zero_stage"), t.zero_stage(), {0, 2, 3}));
  QUARTET_RETURN_IF_ERROR(Dtype(field("dtype"), t.dtype()));
  QUARTET_RETURN_IF_ERROR(Real(field("learning_rate"), t.learning_rate(), 0, kInfinity));
  if (t.has_learning_rate() && t.learning_rate() == 0 && !t.allow_zero_learning_rate()) {
    return Bad(field("learning_rate"), "0",
               absl::StrCat("nothing would be learned; if that is meant (a baseline), set ",
                            field("allow_zero_learning_rate"), ": true"));
  }
  QUARTET_RETURN_IF_ERROR(OneOf(field("lr_scheduler"), t.lr_scheduler(), {"constant", "linear", "cosine"}));
  QUARTET_RETURN_IF_ERROR(Integer(field("lr_warmup_steps"), t.lr_warmup_steps(), 0));
  QUARTET_RETURN_IF_ERROR(Below(field("lr_warmup_ratio"), t.lr_warmup_ratio(), 1));
  QUARTET_RETURN_IF_ERROR(Real(field("min_lr_ratio"), t.min_lr_ratio(), 0, 1));
  QUARTET_RETURN_IF_ERROR(CheckOptimizer(name, t));
  QUARTET_RETURN_IF_ERROR(Real(field("max_norm"), t.max_norm(), 0, kInfinity));
  QUARTET_RETURN_IF_ERROR(CheckSharding(name, t));
  QUARTET_RETURN_IF_ERROR(Integer(field("max_len"), t.max_len(), 2, 2 * kMaxTokens));
  if (t.max_tokens_per_micro_batch() == 0) {
    QUARTET_RETURN_IF_ERROR(Integer(field("micro_train_batch_size"), t.micro_train_batch_size(), 1));
    return Integer(field("micro_rollout_batch_size"), t.micro_rollout_batch_size(), 1);
  }
  if (t.has_micro_train_batch_size()) return BothLimits(name, "micro_train_batch_size");
  if (t.has_micro_rollout_batch_size()) return BothLimits(name, "micro_rollout_batch_size");
  return TokenBudget(field("max_tokens_per_micro_batch"), t.max_tokens_per_micro_batch(), field("max_len"),
                     t.max_len());
}

// How far a method that learns from rows goes through them; `section`, named `name`, is its own.
template <typename Section>
absl::Status CheckLength(const std::string& name, const Section& section) {
  const auto field = [&name](const char* leaf) { return absl::StrCat(name, ".", leaf); };
  QUARTET_RETURN_IF_ERROR(Integer(field("batch_size"), section.batch_size(), 1));
  QUARTET_RETURN_IF_ERROR(Integer(field("max_steps"), section.max_steps(), 0));
  return section.max_steps() == 0 ? Integer(field("max_epochs"), section.max_epochs(), 1) : absl::OkStatus();
}

}  // namespace

absl::Status CheckTrainers(const RunConfig& c) {
  QUARTET_RETURN_IF_ERROR(CheckTrainer("actor", c.actor()));
  return UsesCritic(c) ? CheckTrainer("critic", c.critic()) : absl::OkStatus();
}

absl::Status CheckTrain(const RunConfig& c) {
  const TrainConfig& t = c.train();
  QUARTET_RETURN_IF_ERROR(Integer("train.max_steps", t.max_steps(), 0));
  if (t.max_steps() == 0) QUARTET_RETURN_IF_ERROR(Integer("train.num_episodes", t.num_episodes(), 1));
  const int64_t sequences = SequencesPerBatch(c);
  const auto bad_for_batch = [&](absl::string_view field, int32_t value, absl::string_view rule) {
    return Bad(
        field, absl::StrCat(value),
        absl::StrCat(rule, " rollout.rollout_batch_size * rollout.n_samples_per_prompt = ",
                     c.rollout().rollout_batch_size(), " * ", c.rollout().n_samples_per_prompt(), " = ", sequences));
  };
  const auto check_count = [&](absl::string_view field, int32_t value) -> absl::Status {
    QUARTET_RETURN_IF_ERROR(Integer(field, value, 1));
    return value <= sequences ? absl::OkStatus() : bad_for_batch(field, value, "it must be at most");
  };
  if (t.has_updates_per_batch()) {
    QUARTET_RETURN_IF_ERROR(check_count("train.updates_per_batch", t.updates_per_batch()));
  } else {
    QUARTET_RETURN_IF_ERROR(Integer("train.train_batch_size", t.train_batch_size(), 1));
    if (sequences % t.train_batch_size() != 0) {
      return bad_for_batch("train.train_batch_size", t.train_batch_size(), "it must divide");
    }
  }
  if (t.has_critic_updates_per_batch()) {
    QUARTET_RETURN_IF_ERROR(check_count("train.critic_updates_per_batch", t.critic_updates_per_batch()));
  } else if (UsesCritic(c)) {
    // The last of its optimizer steps may have fewer: recipes count the critic's steps, not their sequences.
    QUARTET_RETURN_IF_ERROR(
        Integer("train.critic_train_batch_size", t.critic_train_batch_size(), 1, std::max<int64_t>(1, sequences)));
  }
  QUARTET_RETURN_IF_ERROR(Integer("train.save_steps", t.save_steps(), 0));
  QUARTET_RETURN_IF_ERROR(Integer("train.max_ckpt_num", t.max_ckpt_num(), 0));
  QUARTET_RETURN_IF_ERROR(Integer("train.call_timeout_seconds", t.call_timeout_seconds(), 1));
  return Real("train.max_log_prob_diff_mean", t.max_log_prob_diff_mean(), 0, kInfinity, /*open_low=*/true);
}

absl::Status CheckSft(const RunConfig& c) {
  const SftConfig& s = c.sft();
  QUARTET_RETURN_IF_ERROR(CheckLength("sft", s));
  if (!s.has_learning_rate()) return absl::OkStatus();
  return Real("sft.learning_rate", s.learning_rate(), 0, kInfinity, /*open_low=*/true);
}

absl::Status CheckPreference(const RunConfig& c) {
  const PreferenceConfig& p = c.preference();
  QUARTET_RETURN_IF_ERROR(Integer("preference.eval_steps", p.eval_steps(), 0));
  QUARTET_RETURN_IF_ERROR(OneOf("preference.loss", p.loss(), {"sigmoid", "ipo"}));
  QUARTET_RETURN_IF_ERROR(Real("preference.beta", p.beta(), 0, kInfinity, /*open_low=*/true));
  QUARTET_RETURN_IF_ERROR(Below("preference.label_smoothing", p.label_smoothing(), 0.5));
  QUARTET_RETURN_IF_ERROR(CheckLength("preference", p));
  if (!p.has_learning_rate()) return absl::OkStatus();
  return Real("preference.learning_rate", p.learning_rate(), 0, kInfinity, /*open_low=*/true);
}

}  // namespace quartet

#include "core/config/programs.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/config/field_paths.h"
#include "core/config/needs.h"
#include "core/config/services.h"
#include "core/config/text/text_override.h"
#include "core/zero/optimizer/optimizer_options.h"

namespace quartet {
namespace {

constexpr Program kPpo = Program::kPpo, kSft = Program::kSft, kDpo = Program::kDpo,
                  kRewardModel = Program::kRewardModel, kEvaluate = Program::kEvaluate;

// A field, or a message with all below it, as these programs have it.
struct ProgramRow {
  std::vector<std::string> paths;
  std::vector<Program> programs;
  std::string why;           // it is not read; "" where it is
  std::string default_text;  // of one that is read, as in text format
  // Of a model of which adapters are trained. They begin at 0, and what is right for all weights teaches them next to
  // nothing.
  std::string default_with_lora = {};
  // If given, it is so only where this holds.
  bool (*where)(const RunConfig& config) = nullptr;
};

ProgramRow NotRead(std::vector<std::string> paths, std::vector<Program> programs, std::string why,
                   bool (*where)(const RunConfig& config) = nullptr) {
  return {std::move(paths), std::move(programs), std::move(why), "", "", where};
}

ProgramRow Default(std::string path, std::vector<Program> programs, std::string text, std::string with_lora = "") {
  return {{std::move(path)}, std::move(programs), "", std::move(text), std::move(with_lora)};
}

std::vector<ProgramRow> MakeRows() {
  const std::vector<Program> offline = {kSft, kDpo, kRewardModel};
  const std::vector<std::string> prompts = {"data.prompt_data", "data.prompt_data_probs", "data.source_key",
                                            "data.label_key",   "data.label_required",    "data.label_extract",
                                            "data.max_samples"};
  const std::string evaluation = "an evaluation trains nothing",
                    eval_data = "an evaluation reads eval.data and eval.set";
  return {
      Default("actor.learning_rate", {kPpo, kDpo}, "1e-6", "1e-5"),
      Default("actor.learning_rate", {kSft}, "1e-4", "1e-3"),
      Default("critic.learning_rate", {kPpo}, "9e-6", "9e-5"),
      Default("critic.learning_rate", {kRewardModel}, "1e-5", "1e-4"),
      Default("actor.max_len", {kSft, kDpo}, "2048"),
      Default("critic.max_len", {kRewardModel}, "2048"),
      Default("train.train_batch_size", offline, "32"),

      // Fine-tuning and pairs: rows of data alone, and nothing is generated.
      NotRead(prompts, {kSft}, "fine-tuning learns from sft.data"),
      NotRead(prompts, {kDpo, kRewardModel}, "what learns from pairs reads preference.data"),
      NotRead({"data.input_key"}, {kSft}, "fine-tuning reads sft.input_key"),
      NotRead({"data.input_key"}, {kDpo, kRewardModel}, "what learns from pairs reads preference.input_key"),
      NotRead({"data.prompt_max_len"}, {kSft, kDpo}, "without prompts actor.max_len is the limit of a sequence"),
      NotRead({"data.prompt_max_len"}, {kRewardModel}, "without prompts critic.max_len is the limit of a sequence"),
      NotRead({"rollout", "services.rollout", "eval", "reward", "agent", "algorithm", "train.updates_per_batch",
               "train.critic_train_batch_size", "train.critic_updates_per_batch", "train.max_log_prob_diff_mean",
               "train.max_upgrade_diff_mean", "train.keep_batches", "actor.sleep_offload", "critic.sleep_offload"},
              offline, "it is of runs that generate answers"),
      NotRead({"critic", "services.critic_trainer"}, {kSft, kDpo}, "it trains no critic"),
      NotRead({"actor", "services.policy_trainer"}, {kRewardModel}, "a reward model is the critic"),
      NotRead({"reference", "services.scorer"}, {kSft, kRewardModel}, "there is no reference"),
      NotRead({"services.scorer"}, {kDpo},
              "actor.lora is set and reference.pretrain is not, so that the policy trainer answers for the reference",
              ReferenceIsBase),
      NotRead({"preference"}, {kSft}, "fine-tuning learns from sft.data"),
      NotRead({"sft"}, {kDpo, kRewardModel}, "what learns from pairs reads preference"),
      NotRead({"actor.micro_rollout_batch_size"}, {kSft}, "fine-tuning makes no forward without gradient"),
      NotRead({"train.eval_steps"}, {kSft}, "fine-tuning has no held-out rows"),
      NotRead({"preference.margin_key"}, {kDpo}, "DPO has no margins; a reward model has"),
      NotRead({"preference.loss", "preference.beta", "preference.label_smoothing"}, {kRewardModel},
              "it is of DPO; a reward model has one loss"),

      NotRead({"sft"}, {kPpo}, "a PPO run makes no fine-tuning; the program sft does"),
      NotRead({"preference"}, {kPpo}, "a PPO run has no pairs; the programs dpo and reward_model learn from them"),

      // An evaluation answers and scores.
      NotRead({"data.prompt_data", "data.prompt_data_probs"}, {kEvaluate}, eval_data),
      NotRead({"data.max_samples"}, {kEvaluate}, "an evaluation goes by eval.max_samples"),
      NotRead({"data.checked_rows"}, {kEvaluate}, "an evaluation checks all rows"),
      NotRead({"data.shuffle"}, {kEvaluate}, "an evaluation reads rows in their order"),
      NotRead({"rollout.temperature"}, {kEvaluate}, "an evaluation goes by eval.temperature"),
      NotRead({"rollout.top_p"}, {kEvaluate}, "an evaluation goes by eval.top_p"),
      NotRead({"rollout.n_samples_per_prompt"}, {kEvaluate}, "an evaluation goes by eval.n_samples_per_prompt"),
      NotRead({"rollout.top_k"}, {kEvaluate}, "an evaluation samples without it"),
      NotRead({"rollout.rollout_batch_size", "rollout.over_sampling_batch_size"}, {kEvaluate},
              "an evaluation answers all its prompts"),
      NotRead({"rollout.enable_sleep"}, {kEvaluate}, evaluation),
      NotRead({"monitor.listen"}, {kEvaluate}, "an evaluation has no page"),
      NotRead({"train.eval_steps"}, {kEvaluate}, "an evaluation is made once"),
      NotRead({"sft", "preference", "algorithm", "critic", "reference", "services.policy_trainer",
               "services.critic_trainer"},
              {kEvaluate}, evaluation),
      NotRead({"actor.learning_rate",
               "actor.lr_scheduler",
               "actor.lr_warmup_ratio",
               "actor.lr_warmup_steps",
               "actor.min_lr_ratio",
               "actor.optim",
               "actor.adam_beta1",
               "actor.adam_beta2",
               "actor.adam_eps",
               "actor.momentum",
               "actor.weight_decay",
               "actor.max_norm",
               "actor.micro_train_batch_size",
               "actor.gradient_checkpointing",
               "actor.allow_zero_learning_rate",
               "actor.adam_offload",
               "actor.activation_offload",
               "actor.sleep_offload",
               "actor.no_sync",
               "actor.ema_decay",
               "actor.load_checkpoint",
               "actor.lora",
               "actor.dtype",
               "actor.zero_stage",
               "actor.shard_size",
               "actor.offload_param",
               "actor.micro_rollout_batch_size",
               "actor.max_tokens_per_micro_batch"},
              {kEvaluate}, evaluation),
      NotRead({"train.max_steps", "train.num_episodes", "train.train_batch_size", "train.updates_per_batch",
               "train.critic_train_batch_size", "train.critic_updates_per_batch", "train.save_steps",
               "train.save_optimizer", "train.save_on_sigterm", "train.load_checkpoint", "train.allow_changed_run",
               "train.max_ckpt_num", "train.keep_batches", "train.trace_steps", "train.max_log_prob_diff_mean",
               "train.max_upgrade_diff_mean"},
              {kEvaluate}, evaluation),
  };
}

// In the table's order.
template <typename Visit>
void ForEachRow(Program program, const Visit& visit) {
  static const auto& rows = *new std::vector<ProgramRow>(MakeRows());
  for (const ProgramRow& row : rows) {
    if (std::ranges::find(row.programs, program) == row.programs.end()) continue;
    for (const std::string& path : row.paths) visit(path, row);
  }
}

// The rows of what `program` does not read of this configuration, as needs that never hold.
std::vector<Need> UnreadBy(Program program, const RunConfig& config) {
  std::vector<Need> unread;
  ForEachRow(program, [&](const std::string& path, const ProgramRow& row) {
    if (row.why.empty() || (row.where != nullptr && !row.where(config))) return;
    unread.push_back({path, [](const RunConfig&) { return false; }, [why = row.why](const RunConfig&) { return why; }});
  });
  return unread;
}

}  // namespace

const std::string& RunProgramName(Program program) {
  const auto named = std::ranges::find_if(kRunPrograms, [program](const auto& one) { return one.second == program; });
  QUARTET_CHECK(named != kRunPrograms.end()) << static_cast<int>(program) << " drives no services";
  return named->first;
}

std::string ExecutableName(Program program) {
  if (program == kPpo) return "orchestrator";
  return program == kEvaluate ? "evaluate" : RunProgramName(program);
}

Program ProgramOfRun(const RunConfig& config) {
  if (config.has_sft()) return kSft;
  if (!config.has_preference()) return kPpo;
  return config.actor().pretrain().empty() ? kRewardModel : kDpo;
}

std::vector<std::string> ServicesOf(Program program, const RunConfig& config) {
  switch (program) {
    case Program::kSft:
      return kSftServices;
    case Program::kDpo:
      return ReferenceIsBase(config) ? kSftServices : kDpoServices;
    case Program::kRewardModel:
      return kRewardModelServices;
    case Program::kEvaluate:
      return {"rollout", "scorer"};
    default:
      return PpoServices(config);
  }
}

std::string LearningSection(Program program) { return program == kRewardModel ? "critic" : "actor"; }

absl::StatusOr<Program> ServiceProgram(std::string_view service) {
  if (service == "rollout") return Program::kRollout;
  if (service == "policy_trainer") return Program::kPolicyTrainer;
  if (service == "critic_trainer") return Program::kCriticTrainer;
  if (service == "scorer") return Program::kScorer;
  return absl::InvalidArgumentError(absl::StrCat("there is no service '", std::string(service),
                                                 "'; there are rollout, policy_trainer, critic_trainer and scorer"));
}

bool IsRead(Program program, std::string_view path) {
  bool is_read = true;
  ForEachRow(program, [&](const std::string& unread, const ProgramRow& row) {
    is_read &= row.why.empty() || row.where != nullptr || unread != path;
  });
  return is_read;
}

std::string DefaultOf(Program program, std::string_view path) {
  std::string text;
  ForEachRow(program, [&](const std::string& field, const ProgramRow& row) {
    if (field == path) text = row.default_text;
  });
  return text;
}

void ClearUnread(Program program, RunConfig* config) {
  for (const Need& unread : UnreadBy(program, *config)) ClearPath(unread.path, config);
}

absl::Status CheckRead(Program program, const RunConfig& written) {
  const std::vector<Need> rows = UnreadBy(program, written);
  std::vector<const Need*> unread;
  for (const Need& row : rows) unread.push_back(&row);
  return CheckIdle(unread, written, written);
}

void FillDefaultsOf(Program program, RunConfig* config) {
  ForEachRow(program, [&](const std::string& path, const ProgramRow& row) {
    if (row.default_text.empty() || !FirstSet(path, *config).empty()) return;
    const TrainerConfig& trainer = TrainerOf(*config, path.substr(0, path.find('.')));
    // How far a step of the others goes depends on the gradient.
    if (path.ends_with(".learning_rate") && !IsScaleFree(trainer)) return;
    const bool lora = trainer.has_lora() && !row.default_with_lora.empty();
    const absl::Status set =
        SetFieldsFromTexts({absl::StrCat(path, "=", lora ? row.default_with_lora : row.default_text)}, config);
    QUARTET_CHECK(set.ok()) << set.message();
  });
}

}  // namespace quartet

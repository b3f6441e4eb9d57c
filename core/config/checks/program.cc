#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/checks/checks.h"
#include "core/config/checks/conditions.h"
#include "core/config/field_paths.h"
#include "core/config/run_config.h"
#include "core/zero/optimizer/optimizer_options.h"

namespace quartet {
namespace {

constexpr char kModelFolder[] = "it names a Hugging Face folder (config.json, model.safetensors, tokenizer.json)";

// What a program does not read, a field or all below it, and why. Services are given the configuration of a whole run,
// and read their part of it.
struct Unread {
  std::string path;
  std::string why;
  // If given, a field that has to be set for that; every resolved configuration has it.
  std::string beside = {};
};

bool IsOffline(Program program) {
  return program == Program::kSft || program == Program::kDpo || program == Program::kRewardModel;
}

// By programs that learn from rows of data alone, and generate nothing.
std::vector<Unread> UnreadByOffline(Program program) {
  const bool sft = program == Program::kSft, reward_model = program == Program::kRewardModel;
  const std::string name = sft ? "fine-tuning" : reward_model ? "training a reward model" : "DPO";
  const std::string own = sft ? "sft" : "preference", trainer = reward_model ? "critic" : "actor";
  const std::string data = absl::StrCat(name, " learns from ", own, ".data");
  const std::string loop = absl::StrCat(name, " is no PPO; ", own, " has its fields");
  const std::string models = absl::StrCat(name, " is without that model");
  const std::string services = absl::StrCat(name, " does not drive that service");
  const std::string length = absl::StrCat(name, " goes by ", trainer, ".max_len, which is set, too");
  const std::string nothing = absl::StrCat(name, " generates nothing");
  std::vector<Unread> unread = {
      {"data.prompt_data", data},
      {"data.prompt_data_probs", data},
      {"data.source_key", data},
      {"data.input_key", absl::StrCat(name, " reads ", own, ".input_key")},
      {"data.label_key", data},
      {"data.label_required", data},
      {"data.label_extract", data},
      {"data.max_samples", data},
      // Before the whole section: these two make up max_len, unless that is set.
      {"data.prompt_max_len", length, trainer + ".max_len"},
      {"rollout.generate_max_len", length, trainer + ".max_len"},
      {"rollout", nothing},
      {"algorithm", loop},
      {absl::StrCat(trainer, ".learning_rate"), absl::StrCat(name, " has ", own, ".learning_rate")},
      {sft ? "preference" : "sft", absl::StrCat(name, " reads ", own)},
      {reward_model ? "actor" : "critic", models},
      {"reward", models},
      {"train.max_steps", loop},
      {"train.num_episodes", loop},
      {"train.train_batch_size", loop},
      {"train.updates_per_batch", loop},
      {"train.max_log_prob_diff_mean", loop},
      {"train.max_upgrade_diff_mean", loop},
      {"eval", absl::StrCat(name, " generates no answers", sft ? "" : "; preference.eval_data is judged")},
      {"services.rollout", services},
      {reward_model ? "services.policy_trainer" : "services.critic_trainer", services}};
  if (program != Program::kDpo) {
    unread.push_back({"reference", models});
    unread.push_back({"services.scorer", services});
  }
  if (sft) unread.push_back({"actor.micro_rollout_batch_size", "fine-tuning makes no forward without gradient"});
  if (program == Program::kDpo) unread.push_back({"preference.margin_key", "DPO has no margins; a reward model has"});
  if (reward_model) {
    for (const char* field : {"preference.loss", "preference.beta", "preference.label_smoothing"}) {
      unread.push_back({field, "it is of DPO; a reward model has one loss"});
    }
  }
  return unread;
}

// By `evaluate`, which answers and scores, and trains nothing.
std::vector<Unread> UnreadByEvaluation() {
  const std::string training = "an evaluation trains nothing", data = "an evaluation reads eval.data and eval.set";
  const auto eval_has = [](const std::string& field) { return "an evaluation goes by eval." + field; };
  std::vector<Unread> unread = {{"data.prompt_data", data},
                                {"data.prompt_data_probs", data},
                                {"data.max_samples", eval_has("max_samples")},
                                {"data.checked_rows", "an evaluation checks all rows"},
                                {"data.shuffle", "an evaluation reads rows in their order"},
                                {"rollout.temperature", eval_has("temperature")},
                                {"rollout.top_p", eval_has("top_p")},
                                {"rollout.top_k", "an evaluation samples without it"},
                                {"rollout.n_samples_per_prompt", eval_has("n_samples_per_prompt")},
                                {"rollout.rollout_batch_size", "an evaluation answers all its prompts"},
                                {"rollout.over_sampling_batch_size", "an evaluation answers all its prompts"},
                                {"eval.eval_steps", "an evaluation is made once"},
                                {"monitor.listen", "an evaluation has no page"}};
  for (const char* section : {"sft", "preference", "algorithm", "critic", "reference", "services.policy_trainer",
                              "services.critic_trainer"}) {
    unread.push_back({section, training});
  }
  for (const char* field : {"learning_rate",
                            "lr_scheduler",
                            "lr_warmup_ratio",
                            "lr_warmup_steps",
                            "min_lr_ratio",
                            "optim",
                            "adam_beta1",
                            "adam_beta2",
                            "adam_eps",
                            "momentum",
                            "weight_decay",
                            "max_norm",
                            "micro_train_batch_size",
                            "gradient_checkpointing",
                            "allow_zero_learning_rate",
                            "adam_offload",
                            "activation_offload",
                            "no_sync",
                            "ema_decay",
                            "load_checkpoint"}) {
    unread.push_back({absl::StrCat("actor.", field), training});
  }
  for (const char* field : {"max_steps", "num_episodes", "train_batch_size", "updates_per_batch", "save_steps",
                            "save_optimizer", "save_on_sigterm", "load_checkpoint", "allow_changed_run", "max_ckpt_num",
                            "keep_batches", "trace_steps", "max_log_prob_diff_mean", "max_upgrade_diff_mean"}) {
    unread.push_back({absl::StrCat("train.", field), training});
  }
  return unread;
}

std::vector<Unread> UnreadBy(Program program) {
  if (IsOffline(program)) return UnreadByOffline(program);
  if (program == Program::kEvaluate) return UnreadByEvaluation();
  if (program != Program::kPpo) return {};
  return {{"sft", "a PPO run makes no fine-tuning; //orchestrator:sft does"},
          {"preference", "a PPO run has no pairs; //orchestrator:dpo and //orchestrator:reward_model learn from them"}};
}

// The fields of `origins` at `path` or below it.
std::vector<std::string> SetAt(const std::string& path, const ValueOrigins& origins) {
  std::vector<std::string> set;
  for (auto field = origins.lower_bound(path); field != origins.end(); ++field) {
    if (field->first != path && !absl::StartsWith(field->first, path + ".")) break;
    set.push_back(field->first);
  }
  return set;
}

// Without the place in a list of values.
std::string NameOf(const std::string& field) {
  const size_t end = field.find_last_not_of("0123456789");
  return end + 1 < field.size() && field[end] == '.' ? field.substr(0, end) : field;
}

// That the longest pair, which is not divided, fits into a micro-batch.
absl::Status CheckPairsFit(const std::string& name, const TrainerConfig& t) {
  const int64_t longest = int64_t{2} * t.max_len();
  if (t.max_tokens_per_micro_batch() == 0 || t.max_tokens_per_micro_batch() >= longest) return absl::OkStatus();
  return Bad(absl::StrCat(name, ".max_tokens_per_micro_batch"), absl::StrCat(t.max_tokens_per_micro_batch()),
             absl::StrCat("a pair of two sequences of ", name, ".max_len (", t.max_len(),
                          ") tokens would fit in no micro-batch: it must be at least ", longest, ", or ", name,
                          ".max_len less"));
}

// That there is a learning rate, which `field` is, for the trainer of this name.
absl::Status CheckRate(const std::string& field, bool is_set, const RunConfig& config, const std::string& trainer) {
  const TrainerConfig& t = TrainerOf(config, trainer);
  if (is_set || IsScaleFree(t)) return absl::OkStatus();
  return Missing(field, absl::StrCat("it has no default where ", trainer, ".optim is \"", t.optim(),
                                     "\", of which a step is the learning rate times the gradient"));
}

}  // namespace

void ClearUnread(Program program, RunConfig* config) {
  for (const Unread& unread : UnreadBy(program)) ClearPath(unread.path, config);
}

absl::Status CheckRead(const ValueOrigins& origins, Program program) {
  std::map<std::string, std::string> refused;  // why, by field
  std::set<std::string> read;                  // although a later row has it
  std::string first;
  for (const Unread& unread : UnreadBy(program)) {
    const bool holds = unread.beside.empty() || !SetAt(unread.beside, origins).empty();
    for (const std::string& field : SetAt(unread.path, origins)) {
      if (program == Program::kEvaluate && origins.at(field) != "--set") continue;
      if (!holds) read.insert(field);
      if (read.count(field) > 0) continue;
      if (first.empty()) first = field;
      refused.emplace(field, unread.why);
    }
  }
  if (refused.empty()) return absl::OkStatus();
  std::string why = absl::StrCat(refused[first], " (it is set by ", origins.at(first), ")");
  refused.erase(first);
  if (!refused.empty()) {
    std::vector<std::string> others;
    for (const auto& [field, unused] : refused) {
      const std::string name = NameOf(field);
      if (name != NameOf(first) && (others.empty() || others.back() != name)) others.push_back(name);
    }
    if (!others.empty()) absl::StrAppend(&why, "; nor have ", absl::StrJoin(others, ", "));
  }
  return NoEffect(NameOf(first), why);
}

absl::Status CheckFor(const RunConfig& config, Program program) {
  const bool ppo = program == Program::kPpo, dpo = program == Program::kDpo;
  if ((ppo || dpo || program == Program::kPolicyTrainer || program == Program::kSft) &&
      config.actor().pretrain().empty()) {
    return Missing("actor.pretrain", kModelFolder);
  }
  if ((ppo || program == Program::kRollout) && config.rollout().pretrain().empty()) {
    return Missing("rollout.pretrain (or actor.pretrain)", kModelFolder);
  }
  if (program == Program::kCriticTrainer && !UsesCritic(config)) return absl::InvalidArgumentError(kNoCritic);
  if ((ppo || program == Program::kCriticTrainer || program == Program::kRewardModel) && UsesCritic(config) &&
      config.critic().pretrain().empty()) {
    return Missing("critic.pretrain", kModelFolder);
  }
  if (ppo || program == Program::kScorer) {
    const bool reference = UsesReference(config);
    if (reference && config.reference().pretrain().empty()) {
      return Missing("reference.pretrain (or actor.pretrain)",
                     absl::StrCat(kModelFolder, "; or set algorithm.kl.init_kl_coef to 0 to do without a reference"));
    }
    if (ppo && config.reward().source().empty()) {
      return Missing("reward.source", "for example: reward { source { rule: \"exact_match\" } }");
    }
    if (!reference && config.reward().source().empty()) {
      return Missing("reward.source", "without it and with algorithm.kl.init_kl_coef 0 the scorer has nothing to do");
    }
  }
  if (ppo) {
    QUARTET_RETURN_IF_ERROR(CheckGroups(config));
    if (config.data().prompt_data().empty()) {
      return Missing("data.prompt_data", "it names files of prompts, JSONL or Parquet");
    }
    const int64_t longest = LongestSequence(config);
    for (const auto& [field, value] :
         {std::pair("rollout.max_model_len", config.rollout().max_model_len()),
          std::pair("actor.max_len", config.actor().max_len()),
          std::pair("critic.max_len", UsesCritic(config) ? config.critic().max_len() : 0)}) {
      if (value < longest && value != 0) {
        return Bad(field, absl::StrCat(value),
                   absl::StrCat("it must be at least data.prompt_max_len + rollout.generate_max_len = ", longest));
      }
    }
  }
  if (ppo) {
    QUARTET_RETURN_IF_ERROR(CheckRate("actor.learning_rate", config.actor().has_learning_rate(), config, "actor"));
    if (UsesCritic(config)) {
      QUARTET_RETURN_IF_ERROR(CheckRate("critic.learning_rate", config.critic().has_learning_rate(), config, "critic"));
    }
  }
  if (program == Program::kSft) {
    if (config.sft().data().empty()) return Missing("sft.data", "it names files of examples, JSONL or Parquet");
    QUARTET_RETURN_IF_ERROR(CheckRate("sft.learning_rate", config.sft().has_learning_rate(), config, "actor"));
  }
  if (dpo || program == Program::kRewardModel) {
    if (config.preference().data().empty()) {
      return Missing("preference.data", "it names files of pairs, JSONL or Parquet");
    }
    const std::string model = dpo ? "actor" : "critic";
    QUARTET_RETURN_IF_ERROR(CheckPairsFit(model, TrainerOf(config, model)));
    QUARTET_RETURN_IF_ERROR(
        CheckRate("preference.learning_rate", config.preference().has_learning_rate(), config, model));
  }
  return absl::OkStatus();
}

}  // namespace quartet

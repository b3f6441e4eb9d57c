#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/checks/checks.h"
#include "core/config/checks/conditions.h"
#include "core/config/defaults.h"
#include "core/config/field_difference.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

constexpr char kModelFolder[] = "it names a Hugging Face folder (config.json, model.safetensors, tokenizer.json)";

// What a program does not read, a field or all below it, and why. Services are given the configuration of a whole run,
// and read their part of it.
struct Unread {
  const char* path;
  const char* why;
};

std::vector<Unread> UnreadBy(const RunConfig& config, Program program) {
  if (program == Program::kPpo) {
    std::vector<Unread> unread = {{"sft", "a PPO run makes no fine-tuning; //orchestrator:sft does"}};
    if (!UsesCritic(config)) {
      unread.push_back({"critic", kNoCritic});
      unread.push_back({"services.critic_trainer", kNoCritic});
    }
    return unread;
  }
  if (program != Program::kSft) return {};
  static constexpr char kData[] = "fine-tuning learns from sft.data";
  static constexpr char kLoop[] = "fine-tuning is no PPO; sft has its fields";
  static constexpr char kServices[] = "of the services fine-tuning drives the policy trainer alone";
  return {{"train.load_checkpoint", "fine-tuning does not continue; actor.load_checkpoint starts from a state"},
          {"data.prompt_data", kData},
          {"data.prompt_data_probs", kData},
          {"data.source_key", kData},
          {"data.input_key", "fine-tuning reads sft.input_key"},
          {"data.label_key", "fine-tuning reads sft.output_key"},
          {"data.label_extract", kData},
          {"data.max_samples", kData},
          // These two make up actor.max_len, unless that is set.
          {"data.prompt_max_len", "fine-tuning goes by actor.max_len, which is set"},
          {"rollout.generate_max_len", "fine-tuning goes by actor.max_len, which is set"},
          {"rollout.http", "fine-tuning generates nothing"},  // others' defaults depend on it
          {"rollout", "fine-tuning generates nothing"},
          {"algorithm", kLoop},
          {"actor.learning_rate", "fine-tuning has sft.learning_rate"},
          {"actor.micro_rollout_batch_size", "fine-tuning makes no forward without gradient"},
          {"critic", kServices},
          {"reference", kServices},
          {"reward", kServices},
          {"train.max_steps", kLoop},
          {"train.num_episodes", kLoop},
          {"train.train_batch_size", kLoop},
          {"train.save_steps", "fine-tuning saves at its end"},
          {"train.max_log_prob_diff_mean", kLoop},
          {"train.save_optimizer", "fine-tuning saves the policy alone"},
          {"train.max_ckpt_num", "fine-tuning saves at its end"},
          {"eval", "fine-tuning does not evaluate"},
          {"services.rollout", kServices},
          {"services.critic_trainer", kServices},
          {"services.scorer", kServices}};
}

// That what the program does not read is at its default.
absl::Status CheckUnread(const RunConfig& config, Program program) {
  const int prompt = config.data().prompt_max_len(), answer = config.rollout().generate_max_len();
  for (const Unread& u : UnreadBy(config, program)) {
    RunConfig without = config;
    ClearPath(u.path, &without);
    if (config.actor().max_len() == prompt + answer) {
      without.mutable_data()->set_prompt_max_len(prompt);
      without.mutable_rollout()->set_generate_max_len(answer);
    }
    FillDefaults(&without);
    if (const std::string field = FirstDifference(config, without); !field.empty()) return NoEffect(field, u.why);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFor(const RunConfig& config, Program program) {
  QUARTET_RETURN_IF_ERROR(CheckUnread(config, program));
  const bool ppo = program == Program::kPpo;
  if ((ppo || program == Program::kPolicyTrainer || program == Program::kSft) && config.actor().pretrain().empty()) {
    return Missing("actor.pretrain", kModelFolder);
  }
  if ((ppo || program == Program::kRollout) && config.rollout().pretrain().empty()) {
    return Missing("rollout.pretrain (or actor.pretrain)", kModelFolder);
  }
  if (program == Program::kCriticTrainer && !UsesCritic(config)) return absl::InvalidArgumentError(kNoCritic);
  if ((ppo || program == Program::kCriticTrainer) && UsesCritic(config) && config.critic().pretrain().empty()) {
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
    if (config.data().prompt_data().empty())
      return Missing("data.prompt_data", "it names files of prompts, JSONL or Parquet");
    const int longest = config.data().prompt_max_len() + config.rollout().generate_max_len();
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
  if (program == Program::kSft && config.sft().data().empty()) {
    return Missing("sft.data", "it names files of examples, JSONL or Parquet");
  }
  return absl::OkStatus();
}

}  // namespace quartet

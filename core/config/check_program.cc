#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/config/conditions.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

constexpr char kModelFolder[] = "it names a Hugging Face folder (config.json, model.safetensors, tokenizer.json)";

}  // namespace

absl::Status CheckFor(const RunConfig& config, Program program) {
  const bool ppo = program == Program::kPpo;
  if ((ppo || program == Program::kPolicyTrainer || program == Program::kSft) && config.actor().pretrain().empty()) {
    return Missing("actor.pretrain", kModelFolder);
  }
  if ((ppo || program == Program::kRollout) && config.rollout().pretrain().empty()) {
    return Missing("rollout.pretrain (or actor.pretrain)", kModelFolder);
  }
  if ((ppo || program == Program::kCriticTrainer) && config.critic().pretrain().empty()) {
    return Missing("critic.pretrain", kModelFolder);
  }
  if (ppo || program == Program::kScorer) {
    const bool reference = config.algorithm().kl().init_kl_coef() > 0;
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
    if (config.data().prompt_data().empty()) return Missing("data.prompt_data", "it names a JSONL file of prompts");
    const int longest = config.data().prompt_max_len() + config.rollout().generate_max_len();
    for (const auto& [field, value] : {std::pair("rollout.max_model_len", config.rollout().max_model_len()),
                                       std::pair("actor.max_len", config.actor().max_len()),
                                       std::pair("critic.max_len", config.critic().max_len())}) {
      if (value < longest) {
        return Bad(field, absl::StrCat(value),
                   absl::StrCat("it must be at least data.prompt_max_len + rollout.generate_max_len = ", longest));
      }
    }
  }
  if (program == Program::kSft && config.train().load_checkpoint()) {
    return NoEffect("train.load_checkpoint",
                    "fine-tuning does not continue; actor.load_checkpoint starts from a state");
  }
  if (program == Program::kSft && config.sft().data().empty()) {
    return Missing("sft.data", "it names a JSONL file of prompts and responses");
  }
  return absl::OkStatus();
}

}  // namespace quartet

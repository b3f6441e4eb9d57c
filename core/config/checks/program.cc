#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/checks/checks.h"
#include "core/config/conditions.h"
#include "core/config/run_config.h"
#include "core/config/services.h"

namespace quartet {
namespace {

constexpr char kModelFolder[] = "it names a Hugging Face folder (config.json, model.safetensors, tokenizer.json)";

// That the longest pair, which is not divided, fits into a micro-batch.
absl::Status CheckPairsFit(const std::string& name, const TrainerConfig& t) {
  const int64_t longest = int64_t{2} * t.max_len();
  if (t.max_tokens_per_micro_batch() == 0 || t.max_tokens_per_micro_batch() >= longest) return absl::OkStatus();
  return Bad(absl::StrCat(name, ".max_tokens_per_micro_batch"), absl::StrCat(t.max_tokens_per_micro_batch()),
             absl::StrCat("a pair of two sequences of ", name, ".max_len (", t.max_len(),
                          ") tokens would fit in no micro-batch: it must be at least ", longest, ", or ", name,
                          ".max_len less"));
}

// That there is a learning rate for the trainer of this name.
absl::Status CheckRate(const RunConfig& config, const std::string& trainer) {
  const TrainerConfig& t = TrainerOf(config, trainer);
  if (t.has_learning_rate()) return absl::OkStatus();
  return Missing(absl::StrCat(trainer, ".learning_rate"),
                 absl::StrCat("it has no default where ", trainer, ".optim is \"", t.optim(),
                              "\", of which a step is the learning rate times the gradient"));
}

// That a run without sources of rewards has something to learn from, and asks for no rewards.
absl::Status CheckWithoutSources(const RunConfig& c) {
  if (HasAgent(c)) return absl::OkStatus();
  if (!c.reward().source().empty()) {
    if (HasRewards(c) || LearnsWithoutRewards(c) || !ReferenceOf(c).has_value()) return absl::OkStatus();
    return Bad("reference.pretrain", absl::StrCat("\"", ReferenceOf(c)->pretrain(), "\""),
               "where the weight of every reward.source is 0 a run learns from its reference alone, and that must be "
               "another model than actor.pretrain");
  }
  if (!HasRewards(c) && !LearnsWithoutRewards(c)) {
    return Missing("reward.source",
                   "for example: reward { source { rule: \"exact_match\" } }. Without it a run learns from its "
                   "reference (--preset=distill): reference.pretrain must be another model than actor.pretrain, and "
                   "algorithm.kl.init_kl_coef above 0");
  }
  if (c.algorithm().dynamic_sampling().filter() != "none") {
    return Bad("algorithm.dynamic_sampling.filter", absl::StrCat("\"", c.algorithm().dynamic_sampling().filter(), "\""),
               "without reward.source all answers have the same score, and it must be \"none\"");
  }
  if (c.eval().data_size() + c.eval().set_size() > 0) {
    return NoEffect(c.eval().data_size() > 0 ? "eval.data" : "eval.set",
                    "there is no reward.source that judges answers; one of weight 0 judges them and is no reward: "
                    "reward { source { rule: \"exact_match\" weight: 0 } }");
  }
  return absl::OkStatus();
}

// That everything takes sequences as long as they may be.
absl::Status CheckLengths(const RunConfig& c) {
  const int64_t turn = LongestTurn(c), longest = LongestSequence(c);
  struct Limit {
    const char* field;
    int32_t value;  // 0: none
    int64_t least;
  };
  for (const Limit& limit : {Limit{"actor.max_len", c.actor().max_len(), turn},
                             Limit{"rollout.max_model_len", c.rollout().max_model_len(), longest},
                             Limit{"critic.max_len", UsesCritic(c) ? c.critic().max_len() : 0, longest}}) {
    if (limit.value >= limit.least || limit.value == 0) continue;
    return Bad(limit.field, absl::StrCat(limit.value),
               absl::StrCat("it must be at least ",
                            limit.least == turn ? "data.prompt_max_len + rollout.generate_max_len" : "actor.max_len",
                            " = ", limit.least));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFor(const RunConfig& config, Program program) {
  const bool ppo = program == Program::kPpo, dpo = program == Program::kDpo, evaluates = program == Program::kEvaluate;
  if ((ppo || dpo || program == Program::kPolicyTrainer || program == Program::kSft) &&
      config.actor().pretrain().empty()) {
    return Missing("actor.pretrain", kModelFolder);
  }
  if ((ppo || evaluates || program == Program::kRollout) && config.rollout().pretrain().empty()) {
    return Missing("rollout.pretrain (or actor.pretrain)", kModelFolder);
  }
  if (program == Program::kCriticTrainer && !UsesCritic(config)) return absl::InvalidArgumentError(kNoCritic);
  if ((ppo || program == Program::kCriticTrainer || program == Program::kRewardModel) && UsesCritic(config) &&
      config.critic().pretrain().empty()) {
    return Missing("critic.pretrain", kModelFolder);
  }
  if (ppo || evaluates || program == Program::kScorer) {
    const bool reference = ReferenceOf(config).has_value();
    if (reference && config.reference().pretrain().empty()) {
      return Missing("reference.pretrain (or actor.pretrain)",
                     absl::StrCat(kModelFolder, "; or set algorithm.kl.init_kl_coef to 0 to do without a reference"));
    }
    if (ppo) QUARTET_RETURN_IF_ERROR(CheckWithoutSources(config));
    if (!reference && config.reward().source().empty() && !HasAgent(config)) {
      return Missing("reward.source",
                     "without it and without a reference (algorithm.kl.init_kl_coef 0, or actor.lora without "
                     "reference.pretrain) the scorer has nothing to do");
    }
  }
  if (ppo) {
    QUARTET_RETURN_IF_ERROR(CheckGroups(config));
    if (config.data().prompt_data().empty()) {
      return Missing("data.prompt_data", "it names files of prompts, JSONL or Parquet");
    }
    QUARTET_RETURN_IF_ERROR(CheckLengths(config));
  }
  if (ppo) {
    QUARTET_RETURN_IF_ERROR(CheckRate(config, "actor"));
    if (UsesCritic(config)) QUARTET_RETURN_IF_ERROR(CheckRate(config, "critic"));
  }
  if (program == Program::kSft) {
    if (config.sft().data().empty()) return Missing("sft.data", "it names files of examples, JSONL or Parquet");
    QUARTET_RETURN_IF_ERROR(CheckRate(config, "actor"));
  }
  if (dpo || program == Program::kRewardModel) {
    if (config.preference().data().empty()) {
      return Missing("preference.data", "it names files of pairs, JSONL or Parquet");
    }
    const std::string model = LearningSection(program);
    QUARTET_RETURN_IF_ERROR(CheckPairsFit(model, TrainerOf(config, model)));
    QUARTET_RETURN_IF_ERROR(CheckRate(config, model));
  }
  if (dpo || program == Program::kRewardModel || program == Program::kSft) return CheckRowCalls(config);
  return absl::OkStatus();
}

}  // namespace quartet

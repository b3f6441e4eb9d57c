#include "core/config/needs.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/config/conditions.h"
#include "core/config/field_paths.h"
#include "core/config/services.h"
#include "core/field_rules/field_rules.h"
#include "core/rl/options/estimators.h"
#include "core/rl/options/policy_losses.h"
#include "core/zero/optimizer/optimizer_options.h"

namespace quartet {
namespace {

// Of an unknown name the one of which everything has an effect.
AdvantageEstimator EstimatorIn(const RunConfig& c) {
  const AdvantageEstimator* const found = FindEstimator(c.algorithm().advantage_estimator());
  if (found != nullptr) return *found;
  return {.needs_critic = true,
          .compare = [](const AlgorithmConfig&, const Moments&, std::span<double>) {},
          .by_program = true,
          .has_baseline = true,
          .divides = true};
}
PolicyLossTraits PolicyLossIn(const RunConfig& c) {
  const PolicyLossTraits* const found = FindPolicyLoss(c.algorithm().policy_loss());
  return found != nullptr ? *found : PolicyLossTraits{.has_ratio = true, .has_dual_clip = true};
}

const KlConfig& KlIn(const RunConfig& c) { return c.algorithm().kl(); }
const std::string& CorrectionModeIn(const RunConfig& c) { return c.algorithm().importance_correction().mode(); }
const std::string& FilterIn(const RunConfig& c) { return c.algorithm().dynamic_sampling().filter(); }

std::string Is(std::string_view field, const std::string& value) {
  return absl::StrCat(std::string(field), " is \"", value, "\"");
}

std::function<std::string(const RunConfig&)> Says(const std::string& why) {
  return [why](const RunConfig&) { return why; };
}

bool NeedsCritic(const RunConfig& c) { return EstimatorIn(c).needs_critic; }
bool Compares(const RunConfig& c) { return EstimatorIn(c).compares(); }
bool Divides(const RunConfig& c) { return EstimatorIn(c).divides; }
bool HasRatio(const RunConfig& c) { return PolicyLossIn(c).has_ratio; }
bool HasKl(const RunConfig& c) { return KlIn(c).init_kl_coef() != 0; }
bool AdaptsKl(const RunConfig& c) { return KlIn(c).kl_target() > 0; }
bool HasChatTemplate(const RunConfig& c) { return c.data().apply_chat_template(); }
bool ReadsChats(const RunConfig& c) { return HasChatTemplate(c) || c.rollout().has_http(); }
bool Corrects(const RunConfig& c) { return CorrectionModeIn(c) != "off"; }
bool HasRange(const RunConfig& c) { return FilterIn(c) != "none" && FilterIn(c) != "not_equal"; }

std::string ByEstimator(const RunConfig& c) {
  return Is("algorithm.advantage_estimator", c.algorithm().advantage_estimator());
}
std::string ByLoss(const RunConfig& c) { return Is("algorithm.policy_loss", c.algorithm().policy_loss()); }
std::string ByCorrection(const RunConfig& c) { return Is("algorithm.importance_correction.mode", CorrectionModeIn(c)); }
std::string ByFilter(const RunConfig& c) { return Is("algorithm.dynamic_sampling.filter", FilterIn(c)); }
const auto NoKl = Says("algorithm.kl.init_kl_coef is 0, so there is no KL penalty");
const auto FixedKl = Says("algorithm.kl.kl_target is 0, so the coefficient does not adapt");

// Of the section of a trained model.
void AddTrainer(const std::string& model, std::vector<Need>* needs) {
  using Holds = std::function<bool(const TrainerConfig&)>;
  using Why = std::function<std::string(const TrainerConfig&)>;
  const auto add = [&](const std::string& leaf, const Holds& holds, const Why& why) {
    needs->push_back({model + "." + leaf, [=](const RunConfig& c) { return holds(TrainerOf(c, model)); },
                      [=](const RunConfig& c) { return absl::StrCat(model, ".", why(TrainerOf(c, model))); }});
  };
  const auto says = [](const std::string& why) { return [why](const TrainerConfig&) { return why; }; };
  const auto is_sharded = [](const TrainerConfig& t) { return t.zero_stage() != 0; };
  for (const OptimizerTraits& optimizer : Optimizers()) {
    for (const std::string_view field : optimizer.fields) {
      add(
          std::string(field),
          [field](const TrainerConfig& t) {
            const OptimizerTraits* const chosen = FindOptimizer(t.optim());
            return chosen == nullptr || chosen->Has(field);
          },
          [](const TrainerConfig& t) { return Is("optim", t.optim()); });
    }
  }
  add(
      "allow_zero_learning_rate",
      [](const TrainerConfig& t) { return t.has_learning_rate() && t.learning_rate() == 0; },
      says("learning_rate is not 0"));
  add(
      "lr_warmup_ratio", [](const TrainerConfig& t) { return !t.has_lr_warmup_steps(); },
      says("lr_warmup_steps is set"));
  add(
      "min_lr_ratio", [](const TrainerConfig& t) { return t.lr_scheduler() != "constant"; },
      says("lr_scheduler is \"constant\""));
  needs->push_back({model + ".sleep_offload", [](const RunConfig& c) { return c.rollout().enable_sleep(); },
                    Says("rollout.enable_sleep is false, so no trainer sleeps")});
  add("shard_size", is_sharded, says("zero_stage is 0, so nothing is sharded"));
  add("no_sync", is_sharded, says("zero_stage is 0, which reduces once a step anyway"));
  add(
      "activation_offload", [](const TrainerConfig& t) { return t.gradient_checkpointing(); },
      says("gradient_checkpointing is false, so no block's input is kept by itself"));
}

// In an order in which a row that looks at a field comes after those of that field.
std::vector<Need> MakeNeeds() {
  std::vector<Need> needs = {
      {"critic", NeedsCritic, Says(kNoCritic)},
      {"services.critic_trainer", NeedsCritic, Says(kNoCritic)},
      {"train.critic_train_batch_size", NeedsCritic, Says(kNoCritic)},
      {"train.critic_updates_per_batch", NeedsCritic, Says(kNoCritic)},
      {"algorithm.advantage_command", [](const RunConfig& c) { return EstimatorIn(c).by_program; }, ByEstimator},
      {"algorithm.lambd", NeedsCritic, ByEstimator},
      {"algorithm.value_clip", NeedsCritic, ByEstimator},
      {"algorithm.critic_epochs", NeedsCritic, ByEstimator},
      {"algorithm.critic_warmup_steps", NeedsCritic, ByEstimator},
      {"algorithm.group_std_eps", Divides, ByEstimator},
      {"algorithm.group_std_scale", Divides, ByEstimator},
      {"algorithm.group_baseline", [](const RunConfig& c) { return EstimatorIn(c).has_baseline; }, ByEstimator},
      {"algorithm.reward_clip_placement", Compares, ByEstimator},
      {"algorithm.whitening_variance",
       [](const RunConfig& c) {
         const std::string& normalization = c.algorithm().advantage_normalization();
         return normalization != "center" && normalization != "none";
       },
       [](const RunConfig& c) {
         return Is("algorithm.advantage_normalization", c.algorithm().advantage_normalization());
       }},

      {"algorithm.eps_clip", HasRatio, ByLoss},
      {"algorithm.eps_clip_low", HasRatio, ByLoss},
      {"algorithm.eps_clip_high", HasRatio, ByLoss},
      {"algorithm.dual_clip", [](const RunConfig& c) { return PolicyLossIn(c).has_dual_clip; }, ByLoss},
      {"algorithm.loss_constant",
       [](const RunConfig& c) {
         const std::string& aggregation = c.algorithm().loss_aggregation();
         return aggregation != "token_mean" && aggregation != "sequence_mean";
       },
       [](const RunConfig& c) { return Is("algorithm.loss_aggregation", c.algorithm().loss_aggregation()); }},

      {"algorithm.importance_correction.threshold_low", Corrects, ByCorrection},
      {"algorithm.importance_correction.threshold_high", Corrects, ByCorrection},
      {"algorithm.importance_correction.gating",
       [](const RunConfig& c) {
         const std::string& mode = CorrectionModeIn(c);
         return Corrects(c) && mode != "token_truncate" && mode != "sequence_truncate" &&
                mode != "sequence_mask_product";
       },
       ByCorrection},

      {"algorithm.importance_correction.threshold_low",
       [](const RunConfig& c) {
         const std::string& gating = c.algorithm().importance_correction().gating();
         return gating != "binary_kl" && gating != "tv";
       },
       [](const RunConfig& c) {
         return Is("algorithm.importance_correction.gating", c.algorithm().importance_correction().gating());
       }},

      {"reference", HasKl, Says("algorithm.kl.init_kl_coef is 0, so no reference model is loaded")},
      {"reference", [](const RunConfig& c) { return !ReferenceIsBase(c); },
       Says("actor.lora is set and reference.pretrain is not, so that the reference is the model that the adapters are "
            "added to, and the policy trainer answers for it")},
      {"algorithm.kl.kl_target", HasKl, NoKl},
      {"algorithm.kl.kl_estimator", HasKl, NoKl},
      {"algorithm.kl.use_kl_loss", HasKl, NoKl},
      {"algorithm.kl.kl_clamp", HasKl, NoKl},
      {"algorithm.kl.kl_gradient", [](const RunConfig& c) { return KlIn(c).use_kl_loss(); },
       Says("algorithm.kl.use_kl_loss is false, so the penalty is no part of the loss")},
      {"algorithm.kl.kl_placement", [](const RunConfig& c) { return HasKl(c) && !KlIn(c).use_kl_loss(); },
       Says("there is no KL penalty in the rewards")},
      {"algorithm.kl.kl_placement", Compares, ByEstimator},
      {"algorithm.kl.kl_horizon", AdaptsKl, FixedKl},
      {"algorithm.kl.kl_mean", AdaptsKl, FixedKl},

      {"algorithm.dynamic_sampling.range_low", HasRange, ByFilter},
      {"algorithm.dynamic_sampling.range_high", HasRange, ByFilter},
      {"algorithm.dynamic_sampling.max_num_gen_batches", [](const RunConfig& c) { return FilterIn(c) != "none"; },
       ByFilter},
      // A factor of 0 says the same as no buffer.
      {"algorithm.overlong_penalty_factor",
       [](const RunConfig& c) {
         return c.algorithm().overlong_buffer_len() != 0 || c.algorithm().overlong_penalty_factor() == 0;
       },
       Says("algorithm.overlong_buffer_len is 0")},

      {"data.tools_key", HasChatTemplate, Says("data.apply_chat_template is false")},
      {"data.tools_key", [](const RunConfig& c) { return !HasAgent(c); },
       Says("an agent says itself which tools there are; it finds the field in \"row\"")},
      {"data.tokenizer_chat_template", ReadsChats, Says("data.apply_chat_template is false")},
      {"data.chat_template_kwargs", ReadsChats, Says("data.apply_chat_template is false")},
      {"data.template_date", ReadsChats, Says("data.apply_chat_template is false")},

      {"rollout.kv_cache_bytes", [](const RunConfig& c) { return !c.rollout().has_gpu_memory_utilization(); },
       Says("rollout.gpu_memory_utilization is set")},

      {"train.num_episodes", [](const RunConfig& c) { return c.train().max_steps() == 0; },
       Says("train.max_steps is set")},
      {"train.eval_steps",
       [](const RunConfig& c) {
         return c.eval().data_size() + c.eval().set_size() + c.preference().eval_data_size() > 0;
       },
       Says("there are no held-out rows: eval.data, eval.set and preference.eval_data are empty")},
      {"train.allow_changed_run", [](const RunConfig& c) { return c.train().load_checkpoint(); },
       Says("train.load_checkpoint is false, so that no run is continued")},
      {"train.max_ckpt_num",
       [](const RunConfig& c) { return c.train().save_steps() != 0 || c.train().save_on_sigterm(); },
       Says("train.save_steps is 0 and train.save_on_sigterm false, so there is only the checkpoint at the end")},

      {"sft.multiturn", HasChatTemplate, Says("data.apply_chat_template is false, so there are no turns")},
      {"preference.label_smoothing", [](const RunConfig& c) { return c.preference().loss() != "ipo"; },
       Says("preference.loss is \"ipo\"")},

      {"cluster.inter_node_gbps", [](const RunConfig& c) { return c.cluster().num_nodes() != 1; },
       Says("cluster.num_nodes is 1")},
      {"cluster.num_numa_nodes", [](const RunConfig& c) { return c.cluster().num_cpus_per_node() > 0; },
       Says("cluster.num_cpus_per_node is not set, so that nothing is known of cores")},
  };
  for (const char* model : {"actor", "critic"}) AddTrainer(model, &needs);
  return needs;
}

const std::vector<Need>& Needs() {
  static const auto& needs = *new std::vector<Need>(MakeNeeds());
  return needs;
}

}  // namespace

std::vector<const Need*> ClearIdle(RunConfig* config) {
  std::vector<const Need*> idle;
  for (const Need& need : Needs()) {
    if (need.holds(*config)) continue;
    ClearPath(need.path, config);
    idle.push_back(&need);
  }
  return idle;
}

absl::Status CheckIdle(const std::vector<const Need*>& idle, const RunConfig& written, const RunConfig& config) {
  RunConfig rest = written;  // without what is named
  // To say that what is off by default is off says nothing.
  const std::map<std::string, std::string> said = FlatFields(written);
  RunConfig plain = written;
  for (const Need* need : idle) ClearPath(need->path, &plain);
  FillRules(&plain);
  const std::map<std::string, std::string> defaults = FlatFields(plain);
  for (const Need* need : idle) {
    const auto found = said.find(need->path), by_default = defaults.find(need->path);
    const bool is_off = found != said.end() && found->second == "false";
    if (is_off && by_default != defaults.end() && by_default->second == "false") ClearPath(need->path, &rest);
  }
  std::string first, why;
  std::vector<std::string> others;
  for (const Need* need : idle) {
    if (first.empty()) {
      first = FirstSet(need->path, rest);
      if (first.empty()) continue;
      why = need->why(config);
      ClearPath(first, &rest);
      if (!FirstSet(need->path, rest).empty()) others.push_back("the rest of " + need->path);
    } else if (!FirstSet(need->path, rest).empty()) {
      others.push_back(need->path);
    }
    ClearPath(need->path, &rest);
  }
  if (first.empty()) return absl::OkStatus();
  if (!others.empty()) absl::StrAppend(&why, "; nor have ", absl::StrJoin(others, ", "));
  return NoEffect(first, why);
}

}  // namespace quartet

#include "core/config/services.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/config/field_paths.h"
#include "core/rl/options/estimators.h"

namespace quartet {

std::vector<std::string> PpoServices(const RunConfig& config) {
  std::vector<std::string> services = kServiceNames;
  if (!UsesCritic(config)) std::erase(services, "critic_trainer");
  return services;
}

ServicePlacement* MutablePlacementOf(RunConfig* config, std::string_view service) {
  ServicesConfig* services = config->mutable_services();
  if (service == "rollout") return services->mutable_rollout();
  if (service == "policy_trainer") return services->mutable_policy_trainer();
  if (service == "critic_trainer") return services->mutable_critic_trainer();
  return services->mutable_scorer();
}

const ServicePlacement& PlacementOf(const RunConfig& config, std::string_view service) {
  const ServicesConfig& services = config.services();
  if (service == "rollout") return services.rollout();
  if (service == "policy_trainer") return services.policy_trainer();
  if (service == "critic_trainer") return services.critic_trainer();
  return services.scorer();
}

const TrainerNames* FindTrainer(std::string_view service) {
  const auto found = std::ranges::find(kTrainers, service, &TrainerNames::service);
  return found == kTrainers.end() ? nullptr : &*found;
}

const TrainerConfig& TrainerOf(const RunConfig& config, std::string_view section) {
  return section == "critic" ? config.critic() : config.actor();
}

TrainerConfig* MutableTrainerOf(RunConfig* config, std::string_view section) {
  return section == "critic" ? config->mutable_critic() : config->mutable_actor();
}

const TrainerNames& TrainerNamesOf(std::string_view section) { return kTrainers[section == "critic" ? 1 : 0]; }

bool UsesCritic(const RunConfig& config) {
  const AdvantageEstimator* const estimator = FindEstimator(config.algorithm().advantage_estimator());
  return estimator != nullptr && estimator->needs_critic;
}

bool UsesReference(const RunConfig& config) { return config.algorithm().kl().init_kl_coef() > 0; }

bool ReferenceIsBase(const RunConfig& config) {
  return config.actor().has_lora() && config.reference().pretrain().empty();
}

std::optional<ReferenceConfig> ReferenceOf(const RunConfig& config) {
  return UsesReference(config) && !ReferenceIsBase(config) ? std::optional(config.reference()) : std::nullopt;
}

bool HasAgent(const RunConfig& config) { return !config.agent().command().empty(); }

bool HasRewards(const RunConfig& config) {
  return HasAgent(config) || config.algorithm().overlong_buffer_len() > 0 ||
         std::ranges::any_of(config.reward().source(),
                             [](const RewardSource& source) { return source.weight() != 0 && !source.gate(); });
}

bool LearnsWithoutRewards(const RunConfig& config) {
  const std::optional<ReferenceConfig> reference = ReferenceOf(config);
  if (reference.has_value() && reference->pretrain() != config.actor().pretrain()) return true;
  const AdvantageEstimator* const estimator = FindEstimator(config.algorithm().advantage_estimator());
  return estimator != nullptr && estimator->by_program;
}

std::vector<ScoringModel> ScoringModels(const RunConfig& config) {
  std::vector<ScoringModel> models;
  if (const std::optional<ReferenceConfig> reference = ReferenceOf(config)) {
    const int64_t tokens = reference->max_tokens_per_micro_batch();
    models.push_back({.section = "reference",
                      .folder = reference->pretrain(),
                      .dtype = reference->dtype(),
                      .zero_stage = reference->zero_stage(),
                      .offload_param = reference->offload_param(),
                      .sequences = tokens > 0 ? 0 : config.actor().micro_rollout_batch_size(),
                      .tokens = tokens,
                      .tokens_option = "reference.max_tokens_per_micro_batch"});
  }
  const RewardConfig& reward = config.reward();
  for (int i = 0; i < reward.source_size(); ++i) {
    const RewardSource& source = reward.source(i);
    if (source.model().empty()) continue;
    models.push_back({.source = i,
                      .section = absl::StrCat("reward.source[", i, "]"),
                      .folder = source.model(),
                      .dtype = source.dtype(),
                      .zero_stage = source.zero_stage(),
                      .offload_param = source.offload_param(),
                      .scalar_head = source.value_head_prefix(),
                      .sequences = reward.micro_rollout_batch_size(),
                      .tokens = reward.max_tokens_per_micro_batch(),
                      .tokens_option = "reward.max_tokens_per_micro_batch"});
  }
  return models;
}

std::map<std::string, std::string> ServiceFields(const RunConfig& config, std::string_view service) {
  RunConfig part;
  if (service == "rollout") {
    *part.mutable_rollout() = config.rollout();
    // What calls say; HTTP, and the longest sequence, which it makes another and GetInfo tells by itself.
    for (const char* field :
         {"rollout_batch_size", "over_sampling_batch_size", "n_samples_per_prompt", "generate_max_len", "temperature",
          "top_p", "top_k", "min_tokens", "http", "max_model_len", "enable_sleep"}) {
      ClearPath(field, part.mutable_rollout());
    }
    // Which weights it takes.
    if (config.actor().has_lora()) *part.mutable_actor()->mutable_lora() = config.actor().lora();
  } else if (service == "policy_trainer") {
    part.set_run_dir(config.run_dir());
    *part.mutable_actor() = config.actor();
    // Not set, where rollout.enable_sleep is off, which calls say.
    if (!config.actor().sleep_offload()) part.mutable_actor()->clear_sleep_offload();
  } else if (service == "critic_trainer") {
    part.set_run_dir(config.run_dir());
    part.set_seed(config.seed());  // of a head that the model does not have
    *part.mutable_critic() = config.critic();
    if (!config.critic().sleep_offload()) part.mutable_critic()->clear_sleep_offload();
    part.mutable_actor()->set_pretrain(config.actor().pretrain());  // whose tokens it reads
  } else if (service == "scorer") {
    *part.mutable_reward() = config.reward();
    if (ReferenceOf(config).has_value()) {
      *part.mutable_reference() = config.reference();
      if (config.actor().has_micro_rollout_batch_size()) {
        part.mutable_actor()->set_micro_rollout_batch_size(config.actor().micro_rollout_batch_size());
      }
    }
    part.mutable_actor()->set_pretrain(config.actor().pretrain());
    part.mutable_actor()->set_max_len(config.actor().max_len());
  }
  // What calls say.
  for (const char* field : {"actor.learning_rate", "critic.learning_rate"}) ClearPath(field, &part);
  return FlatFields(part);
}

}  // namespace quartet

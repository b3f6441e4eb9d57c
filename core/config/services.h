// Which services and models a run has, and what of its configuration each goes by. Of resolved configurations.
// LibTorch-free and gRPC-free.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/scoring_model.h"
#include "proto/run_config.pb.h"

namespace quartet {

inline const std::vector<std::string> kServiceNames = {"rollout", "policy_trainer", "critic_trainer", "scorer"};
// Those that fine-tuning drives; training on preferences; training a reward model.
inline const std::vector<std::string> kSftServices = {"policy_trainer"};
inline const std::vector<std::string> kDpoServices = {"policy_trainer", "scorer"};  // one, where ReferenceIsBase
inline const std::vector<std::string> kRewardModelServices = {"critic_trainer"};
// Those of a PPO run: all, without a critic all but its trainer.
std::vector<std::string> PpoServices(const RunConfig& config);

// Where `service` (a known name) listens and how many ranks it has.
const ServicePlacement& PlacementOf(const RunConfig& config, std::string_view service);
ServicePlacement* MutablePlacementOf(RunConfig* config, std::string_view service);

// How a trainer is called, by where it is spoken of.
struct TrainerNames {
  std::string service;
  std::string section;  // of the configuration
  std::string model;    // its folder in a checkpoint
  std::string state;    // that of its training state there
};
inline const std::array<TrainerNames, 2> kTrainers = {
    {{"policy_trainer", "actor", "policy", "policy_state"}, {"critic_trainer", "critic", "critic", "critic_state"}}};
// nullptr where `service` is no trainer.
const TrainerNames* FindTrainer(std::string_view service);

// The section "actor" or "critic", of a trained model.
const TrainerConfig& TrainerOf(const RunConfig& config, std::string_view section);
TrainerConfig* MutableTrainerOf(RunConfig* config, std::string_view section);
const TrainerNames& TrainerNamesOf(std::string_view section);

// Whether there are values of states, as algorithm.advantage_estimator says.
bool UsesCritic(const RunConfig& config);
// Whether there is a KL penalty, and so a reference model.
bool UsesReference(const RunConfig& config);
// Where it is the model that the actor's adapters are added to: then the policy trainer answers for it, without them.
bool ReferenceIsBase(const RunConfig& config);
// Else the scorer has it; its section, if there is one.
std::optional<ReferenceConfig> ReferenceOf(const RunConfig& config);
// Whether an agent talks with the policy, so that the answer to a prompt is an episode.
bool HasAgent(const RunConfig& config);
// Whether answers are worth anything by themselves: by a source with a weight, by an agent, or for their length
// (algorithm.overlong_buffer_len).
bool HasRewards(const RunConfig& config);
// Whether there is something to learn from beside rewards: a teacher, which is a reference that the policy did not
// begin as, or advantages that a program gives.
bool LearnsWithoutRewards(const RunConfig& config);
// The reference, if it has one, then those of sources of rewards in their order.
std::vector<ScoringModel> ScoringModels(const RunConfig& config);

// The fields that the service of this name uses, or that are its own by their section, as paths ("actor.dtype",
// "reward.source.0.rule") with their values in text format; fields that are not set are left out. Neither where it runs
// (services, tls), nor what only its other clients see (rollout.http), nor what GetInfo tells by itself
// (rollout.max_model_len), nor what the orchestrator says in its calls.
std::map<std::string, std::string> ServiceFields(const RunConfig& config, std::string_view service);

}  // namespace quartet

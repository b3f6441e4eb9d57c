// Which services and models a run has, and what its method goes by. Of resolved configurations.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/run_config.pb.h"

namespace quartet {

inline const std::vector<std::string> kServiceNames = {"rollout", "policy_trainer", "critic_trainer", "scorer"};
// Those that fine-tuning drives; training on preferences; training a reward model.
inline const std::vector<std::string> kSftServices = {"policy_trainer"};
inline const std::vector<std::string> kDpoServices = {"policy_trainer", "scorer"};
inline const std::vector<std::string> kRewardModelServices = {"critic_trainer"};
// Those of a PPO run: all, without a critic all but its trainer.
std::vector<std::string> PpoServices(const RunConfig& config);

// The section of a trained model: "actor" or "critic".
const TrainerConfig& TrainerOf(const RunConfig& config, std::string_view model);

// Whether there are values of states, as algorithm.advantage_estimator says.
bool UsesCritic(const RunConfig& config);
// Whether there is a KL penalty, and so a reference model.
bool UsesReference(const RunConfig& config);

}  // namespace quartet

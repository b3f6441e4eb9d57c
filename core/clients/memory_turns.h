// Has the rollout and the trainers hold a GPU's memory in turn (rollout.enable_sleep), so that there need not be room
// for all at once, and compute in turn where they have a GPU in common.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clients/service_clients.h"
#include "core/config/placement.h"
#include "proto/run_config.pb.h"
#include "proto/weights.pb.h"

namespace quartet {

// Nobody is put to sleep in runs without rollout.enable_sleep. One thread. `config` and `services` outlive it.
class MemoryTurns {
 public:
  MemoryTurns(const RunConfig& config, Services& services)
      : config_(config),
        services_(services),
        trainers_in_turn_(TrainersInTurn(config)),
        forwards_in_turn_(ForwardsInTurn(config)) {}

  // Whether the trainers learn, and save, one after the other; and what is asked of them and of the scorer of a batch.
  bool trainers_in_turn() const { return trainers_in_turn_; }
  bool forwards_in_turn() const { return forwards_in_turn_; }
  // Where the trainers work in turn, after the last of its calls before the other's.
  absl::Status RestPolicy();
  absl::Status RestCritic();

  // The rollout, which is generating nothing, gives back its KV cache and, but for a model that adapters are added to,
  // its weights.
  absl::Status GiveToTrainers(uint64_t step);

  // The trainers give back what only their calls need, the rollout takes its memory again, and goes on with the weights
  // that it had: those of `published`, or, where nothing was, of its folder.
  absl::Status GiveToRollout(uint64_t step, const std::optional<WeightManifest>& published);

  // The trainers give back what only their calls need.
  absl::Status RestTrainers();

  // Publishes the policy's present weights as `version`, and has the rollout, which has its memory again, take them
  // (TakeWeights); also in runs without rollout.enable_sleep. `published` is what was published, also where the rollout
  // fails to take it. The seconds in which it made no forwards.
  absl::StatusOr<double> SyncWeights(uint64_t step, uint64_t version, WeightManifest* published);

 private:
  // Generate waits until Resume.
  absl::Status WakeUp(uint64_t step);
  // TakeWeights by a rollout that is awake again and still paused.
  absl::StatusOr<double> TakeAfterSleep(uint64_t step, const WeightManifest& published);

  const RunConfig& config_;
  Services& services_;
  const bool trainers_in_turn_, forwards_in_turn_;
};

}  // namespace quartet

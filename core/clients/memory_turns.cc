#include "core/clients/memory_turns.h"

#include <utility>

#include "core/base/status_macros.h"
#include "core/clients/weight_sync.h"

namespace quartet {

absl::Status MemoryTurns::GiveToTrainers(uint64_t step) {
  if (!config_.rollout().enable_sleep()) return absl::OkStatus();
  return services_.rollout->Sleep(step, config_.actor().has_lora() ? 1 : 2);
}

absl::Status MemoryTurns::GiveToRollout(uint64_t step, const std::optional<WeightManifest>& published) {
  if (!config_.rollout().enable_sleep()) return absl::OkStatus();
  QUARTET_RETURN_IF_ERROR(WakeUp(step));
  if (published.has_value() && !config_.actor().has_lora()) {
    QUARTET_RETURN_IF_ERROR(TakeAfterSleep(step, *published).status());
  }
  return services_.rollout->Resume(step);
}

absl::StatusOr<double> MemoryTurns::SyncWeights(uint64_t step, uint64_t version, WeightManifest* published) {
  QUARTET_ASSIGN_OR_RETURN(PublishReply reply, services_.policy_trainer->Publish(step, version));
  *published = std::move(*reply.mutable_manifest());
  if (!config_.rollout().enable_sleep()) return TakeWeights(*services_.rollout, step, *published);
  QUARTET_RETURN_IF_ERROR(WakeUp(step));
  QUARTET_ASSIGN_OR_RETURN(const double pause_seconds, TakeAfterSleep(step, *published));
  QUARTET_RETURN_IF_ERROR(services_.rollout->Resume(step));
  return pause_seconds;
}

absl::Status MemoryTurns::RestTrainers() {
  if (!config_.rollout().enable_sleep()) return absl::OkStatus();
  QUARTET_RETURN_IF_ERROR(services_.policy_trainer->Sleep());
  return services_.critic_trainer == nullptr ? absl::OkStatus() : services_.critic_trainer->Sleep();
}

absl::Status MemoryTurns::RestPolicy() {
  return trainers_in_turn_ && config_.rollout().enable_sleep() ? services_.policy_trainer->Sleep() : absl::OkStatus();
}

absl::Status MemoryTurns::RestCritic() {
  const bool rests = trainers_in_turn_ && config_.rollout().enable_sleep() && services_.critic_trainer != nullptr;
  return rests ? services_.critic_trainer->Sleep() : absl::OkStatus();
}

absl::StatusOr<double> MemoryTurns::TakeAfterSleep(uint64_t step, const WeightManifest& published) {
  absl::StatusOr<double> taken = TakeWeights(*services_.rollout, step, published);
  // The run ends; who else asks the rollout is answered by the old weights, where sleep has left them.
  if (!taken.ok()) services_.rollout->Resume(step).IgnoreError();
  return taken;
}

absl::Status MemoryTurns::WakeUp(uint64_t step) {
  QUARTET_RETURN_IF_ERROR(RestTrainers());
  return services_.rollout->WakeUp(step);
}

}  // namespace quartet

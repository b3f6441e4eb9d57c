// The optimizer steps of policy and critic.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clients/handshake.h"
#include "core/clients/memory_turns.h"
#include "core/clients/service_clients.h"
#include "core/rl/learning_rate.h"
#include "core/run_folder/records/metrics.h"
#include "orchestrator/loop/experience/experience.h"
#include "proto/run_config.pb.h"

namespace quartet {

// One thread. `config`, `services` and `memory` outlive it.
class Updates {
 public:
  // For a run of `steps` PPO steps, of which `steps_done` are behind it: the schedules of learning rates go on there.
  // `handshake`: what the trainers have applied by now.
  static absl::StatusOr<Updates> Create(const RunConfig& config, Services& services, MemoryTurns& memory,
                                        const Handshake& handshake, int64_t steps, int64_t steps_done);

  // All optimizer steps of one PPO step, policy and critic side by side or in turn. `kl_coefficient`: of a KL in the
  // loss. FAILED_PRECONDITION where the gradients of several in a row were not finite.
  absl::Status Run(int64_t step, const std::vector<Experience>& batch, double kl_coefficient, Metrics* metrics);

  // Whether Run changes the policy: not while the critic warms up.
  bool TrainsPolicy(int64_t step) const;

  // Optimizer steps that the trainers have applied.
  int64_t policy_applied() const { return policy_.applied; }
  // Nothing without a critic.
  std::optional<int64_t> critic_applied() const;

  struct Trainer {
    LearningRateSchedule schedule;
    int64_t epochs = 1;
    int64_t steps_an_epoch = 1;
    int64_t sent = 0;  // where the schedule is; skipped steps count
    int64_t applied = 0;
    int64_t skipped_in_a_row = 0;
  };

 private:
  Updates(const RunConfig& config, Services& services, MemoryTurns& memory, Trainer policy,
          std::optional<Trainer> critic)
      : config_(&config), services_(&services), memory_(&memory), policy_(policy), critic_(critic) {}

  const RunConfig* config_;
  Services* services_;
  MemoryTurns* memory_;
  Trainer policy_;
  std::optional<Trainer> critic_;
};

}  // namespace quartet

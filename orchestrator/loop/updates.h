// The optimizer steps of policy and critic.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/rl/learning_rate.h"
#include "orchestrator/clients/service_clients.h"
#include "orchestrator/loop/experience.h"
#include "orchestrator/run_folder/metrics.h"
#include "proto/run_config.pb.h"

namespace quartet {

// One thread. `config` and `services` outlive it.
class Updates {
 public:
  // For a run of `steps` PPO steps, of which `steps_done` are behind it: the schedules of learning rates go on there.
  static absl::StatusOr<Updates> Create(const RunConfig& config, Services& services, int64_t steps, int64_t steps_done);

  // All optimizer steps of one PPO step, policy and critic side by side. FAILED_PRECONDITION where the gradients of
  // several in a row were not finite.
  absl::Status Run(int64_t step, const std::vector<Experience>& batch, Metrics* metrics);

  // Optimizer steps that the trainers had applied after the last Run.
  int64_t policy_applied() const { return policy_.applied; }
  int64_t critic_applied() const { return critic_.applied; }

  struct Trainer {
    LearningRateSchedule schedule;
    int64_t sent = 0;  // where the schedule is; skipped steps count
    int64_t applied = 0;
    int64_t skipped_in_a_row = 0;
  };

 private:
  Updates(const RunConfig& config, Services& services, Trainer policy, Trainer critic)
      : config_(&config), services_(&services), policy_(policy), critic_(critic) {}

  const RunConfig* config_;
  Services* services_;
  Trainer policy_, critic_;
};

}  // namespace quartet

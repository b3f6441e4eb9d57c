#include "orchestrator/checks/start_check.h"

#include <memory>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/checkpoint/state_folder.h"

namespace quartet {

int64_t OptimizerSteps(const ServiceInfo& trainer) {
  return trainer.ranks_size() > 0 ? trainer.ranks(0).optimizer_steps() : 0;
}

absl::Status CheckFreshTrainer(const ServiceInfo& trainer, const std::string& field,
                               const std::string& load_checkpoint) {
  int64_t expected = 0;
  if (!load_checkpoint.empty()) {
    QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<StateReader> state, StateReader::Open(load_checkpoint));
    expected = state->manifest().optimizer_steps;
  }
  if (OptimizerSteps(trainer) == expected) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the ", trainer.service(), " has made ", OptimizerSteps(trainer), " optimizer steps, but a new run with ", field,
      ".load_checkpoint ", load_checkpoint.empty() ? "not set" : load_checkpoint, " begins after ", expected,
      ". Start the service again with the same configuration as the orchestrator, or all services by --launch; to "
      "continue the run that trained it, set train.load_checkpoint and that run's run_dir"));
}

absl::Status CheckStart(const RunConfig& config, uint64_t prompts_hash, const std::optional<CheckpointRecord>& resume,
                        const std::string& checkpoints, const Hello& hello) {
  if (!resume.has_value()) {
    QUARTET_RETURN_IF_ERROR(CheckFreshTrainer(hello.policy_trainer, "actor", config.actor().load_checkpoint()));
    if (!hello.critic_trainer.has_value()) return absl::OkStatus();
    return CheckFreshTrainer(*hello.critic_trainer, "critic", config.critic().load_checkpoint());
  }
  const std::string folder = absl::StrCat(checkpoints, "/", CheckpointId(resume->step));
  const auto refuse = [&](const std::string& what) {
    return absl::FailedPreconditionError(absl::StrCat("the run cannot go on after ", folder, ": ", what));
  };
  const bool may_change = config.train().allow_changed_run();
  if (!may_change && resume->seed != config.seed()) {
    return refuse(absl::StrCat("it was made with seed ", resume->seed, ", not ", config.seed()));
  }
  if (!may_change && resume->rollout_batch_size != config.rollout().rollout_batch_size()) {
    return refuse(absl::StrCat("it was made with rollout.rollout_batch_size ", resume->rollout_batch_size, ", not ",
                               config.rollout().rollout_batch_size()));
  }
  if (!may_change && resume->prompts_hash != prompts_hash) {
    return refuse(absl::StrCat("it was made with other prompts than those of ",
                               absl::StrJoin(config.data().prompt_data(), ", ")));
  }
  std::vector<std::tuple<const ServiceInfo*, int64_t, const char*, const char*>> trainers = {
      {&hello.policy_trainer, resume->policy->optimizer_steps, "actor", "policy_state"}};
  if (hello.critic_trainer.has_value()) {
    if (!resume->critic.has_value()) return refuse("it was made without a critic");
    trainers.emplace_back(&*hello.critic_trainer, resume->critic->optimizer_steps, "critic", "critic_state");
  } else if (resume->critic.has_value()) {
    return refuse("it was made with a critic, which this run is without (algorithm.advantage_estimator)");
  }
  for (const auto& [trainer, expected, field, state] : trainers) {
    if (OptimizerSteps(*trainer) == expected) continue;
    return refuse(
        absl::StrCat("the ", trainer->service(), " has made ", OptimizerSteps(*trainer),
                     " optimizer steps, the checkpoint ", expected,
                     "; end it and start it again with train.load_checkpoint set, so that it takes the newest "
                     "state of the run (or with ",
                     field, ".load_checkpoint set to ", folder, "/", state, "), or all services by --launch"));
  }
  return absl::OkStatus();
}

}  // namespace quartet

#include "orchestrator/checks/start_check.h"

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/checkpoint/state_folder.h"
#include "core/config/services.h"

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

namespace {

std::string CannotGoOn(const std::string& folder, const std::string& what) {
  return absl::StrCat("the run cannot go on after ", folder, ": ", what);
}

absl::Status IsAnother(const std::string& folder, const std::string& what) {
  return absl::InvalidArgumentError(CannotGoOn(folder, what));
}

std::string FolderOf(const CheckpointRecord& resume, const std::string& checkpoints) {
  return absl::StrCat(checkpoints, "/", CheckpointId(resume.step));
}

absl::Status MadeWith(const std::string& folder, const std::string& what) {
  return IsAnother(folder, absl::StrCat("it was made with ", what,
                                        "\nThe ways out: set it as it was; or, to go on all the same, "
                                        "train.allow_changed_run=true; or begin another run, in another run_dir"));
}

// That the run is the one that the checkpoint in `folder` is of; with train.allow_changed_run it may be another.
absl::Status CheckSameRun(const RunConfig& config, const CheckpointRecord& resume, const std::string& folder,
                          const RunRows& rows) {
  if (config.train().allow_changed_run()) return absl::OkStatus();
  if (resume.seed != config.seed()) {
    return MadeWith(folder, absl::StrCat("seed ", resume.seed, ", not ", config.seed()));
  }
  if (resume.rollout_batch_size != rows.batch_size) {
    return MadeWith(folder, absl::StrCat(rows.batch_field, " ", resume.rollout_batch_size, ", not ", rows.batch_size));
  }
  if (resume.prompts_hash == rows.hash || resume.rows_are_mended) return absl::OkStatus();
  // The hash is of what the model reads.
  if (!resume.rows_read_otherwise.empty()) {
    return MadeWith(folder, absl::StrCat("rows of ", rows.files,
                                         " that read otherwise, or others of them; this has changed since:\n  ",
                                         absl::StrJoin(resume.rows_read_otherwise, "\n  ")));
  }
  return MadeWith(folder, absl::StrCat("other rows than those of ", rows.files,
                                       ", or they read otherwise (by the tokenizer, its chat template, "
                                       "data.chat_template_kwargs or data.template_date)"));
}

}  // namespace

absl::Status CheckRowsGoOn(const RunConfig& config, const RunRows& rows, const std::string& model,
                           const CheckpointRecord& resume, const std::string& checkpoints) {
  const std::string folder = FolderOf(resume, checkpoints);
  QUARTET_RETURN_IF_ERROR(CheckSameRun(config, resume, folder, rows));
  if (resume.state_of(model).has_value()) return absl::OkStatus();
  return IsAnother(folder, absl::StrCat("it has no state of the ", model));
}

absl::Status CheckResumedTrainer(const ServiceInfo& trainer, const SavedTrainer& saved, const std::string& field,
                                 const std::string& folder) {
  if (OptimizerSteps(trainer) == saved.optimizer_steps) return absl::OkStatus();
  return absl::FailedPreconditionError(CannotGoOn(
      folder, absl::StrCat("the ", trainer.service(), " has made ", OptimizerSteps(trainer),
                           " optimizer steps, the checkpoint ", saved.optimizer_steps,
                           "; end it and start it again with train.load_checkpoint set, so that it takes the newest "
                           "state of the run (or with ",
                           field, ".load_checkpoint set to ", folder, "/", TrainerNamesOf(field).state,
                           "), or all services by --launch")));
}

absl::Status CheckStepsLeft(int64_t done, int64_t steps, const std::string& option) {
  if (done <= steps) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the run has made ", done, " steps already, more than the ", steps,
                                                 " of ", option, "; raise it to go on"));
}

absl::Status CheckGoesOn(const RunConfig& config, uint64_t prompts_hash, int64_t steps, const CheckpointRecord& resume,
                         const std::string& checkpoints) {
  QUARTET_RETURN_IF_ERROR(
      CheckStepsLeft(resume.step, steps, config.train().max_steps() > 0 ? "train.max_steps" : "train.num_episodes"));
  const std::string folder = FolderOf(resume, checkpoints);
  QUARTET_RETURN_IF_ERROR(CheckSameRun(config, resume, folder,
                                       {.batch_field = "rollout.rollout_batch_size",
                                        .batch_size = config.rollout().rollout_batch_size(),
                                        .hash = prompts_hash,
                                        .files = absl::StrJoin(config.data().prompt_data(), ", ")}));
  if (!resume.policy.has_value()) return IsAnother(folder, "it was made without a policy");
  if (UsesCritic(config) == resume.critic.has_value()) return absl::OkStatus();
  return IsAnother(folder, resume.critic.has_value() ? "it was made with a critic, which this run is without "
                                                       "(algorithm.advantage_estimator)"
                                                     : "it was made without a critic");
}

absl::Status CheckStart(const RunConfig& config, const std::optional<CheckpointRecord>& resume,
                        const std::string& checkpoints, const Handshake& handshake) {
  if (!resume.has_value()) {
    QUARTET_RETURN_IF_ERROR(CheckFreshTrainer(handshake.policy_trainer, "actor", config.actor().load_checkpoint()));
    if (!handshake.critic_trainer.has_value()) return absl::OkStatus();
    return CheckFreshTrainer(*handshake.critic_trainer, "critic", config.critic().load_checkpoint());
  }
  const std::string folder = FolderOf(*resume, checkpoints);
  QUARTET_RETURN_IF_ERROR(CheckResumedTrainer(handshake.policy_trainer, *resume->policy, "actor", folder));
  if (!handshake.critic_trainer.has_value()) return absl::OkStatus();
  return CheckResumedTrainer(*handshake.critic_trainer, *resume->critic, "critic", folder);
}

}  // namespace quartet

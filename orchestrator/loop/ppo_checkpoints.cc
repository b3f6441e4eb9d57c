#include "orchestrator/loop/ppo_checkpoints.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/base/time/side_by_side.h"
#include "core/base/time/stopwatch.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/config/services.h"
#include "core/terminal/folder_growth.h"

namespace quartet {

LoopState StartOf(const PpoRun& run) {
  const KlConfig& kl = run.config.algorithm().kl();
  LoopState start = {.kl_coefficient = kl.init_kl_coef()};
  if (!run.resume.has_value()) return start;
  start.steps_done = run.resume->step;
  start.prompts_drawn = run.resume->drawn();
  // A coefficient that adapts goes on where the checkpoint left it.
  if (kl.kl_target() > 0) start.kl_coefficient = run.resume->kl_coefficient;
  return start;
}

PpoCheckpoints::PpoCheckpoints(const PpoRun& run, MemoryTurns& memory) : run_(run), memory_(memory) {
  if (run.resume.has_value()) last_policy_ = absl::StrCat("checkpoints/", CheckpointId(run.resume->step), "/policy");
}

absl::StatusOr<SavedStates> PpoCheckpoints::SaveStates(int64_t steps_done, Metrics* metrics) {
  const Stopwatch saving;
  QUARTET_ASSIGN_OR_RETURN(SavedStates saved,
                           ShowGrowth(run_.view, run_.folder.checkpoint_path(CheckpointId(steps_done)), &last_bytes_,
                                      [&] { return AskForStates(steps_done); }));
  metrics->Set("time/checkpoint", saving.Seconds());
  return saved;
}

absl::StatusOr<SavedStates> PpoCheckpoints::AskForStates(int64_t steps_done) {
  const std::string id = CheckpointId(steps_done);
  const auto step = static_cast<uint64_t>(steps_done);
  const bool save_optimizer = run_.config.train().save_optimizer() || (run_.ends_continuable && !run_.ending().ok());
  // The critic is of use only to a run that goes on.
  double ignored_seconds = 0;
  const auto save_critic = [&]() -> absl::StatusOr<SaveCheckpointReply> {
    if (!save_optimizer || !UsesCritic(run_.config)) return SaveCheckpointReply();
    return run_.services.critic_trainer->SaveCheckpoint(step, id, save_optimizer);
  };
  const bool in_turn = memory_.trainers_in_turn();
  auto critic_future = SideBySide(&ignored_seconds, save_critic, in_turn);
  const auto policy_done = run_.services.policy_trainer->SaveCheckpoint(step, id, save_optimizer);
  if (in_turn) {
    const absl::Status rested = policy_done.ok() ? memory_.RestPolicy() : policy_done.status();
    if (!rested.ok()) return run_.folder.GiveUpCheckpoint(id, {rested});
  }
  const auto critic_done = critic_future.get();
  if (!policy_done.ok() || !critic_done.ok()) {
    return run_.folder.GiveUpCheckpoint(id, {policy_done.status(), critic_done.status()});
  }
  SavedStates saved = {.continuable = save_optimizer, .policy = *policy_done, .critic = *critic_done};

  for (const auto& [trainer, reply] :
       {std::pair("policy_trainer", &saved.policy), std::pair("critic_trainer", &saved.critic)}) {
    for (const std::string& folder : {reply->folder(), reply->state_folder()}) {
      if (!folder.empty()) QUARTET_RETURN_IF_ERROR(run_.folder.CheckHasSaved(trainer, folder));
    }
  }
  return saved;
}

absl::Status PpoCheckpoints::Commit(const LoopState& state, const Updates& updates, const SavedStates& saved,
                                    const Metrics& metrics, bool has_evaluation) {
  CheckpointRecord record;
  record.step = state.steps_done;
  record.kl_coefficient = state.kl_coefficient;
  record.seed = run_.config.seed();
  record.rollout_batch_size = run_.config.rollout().rollout_batch_size();
  record.prompts_hash = run_.prompts.hash();
  record.prompts_drawn = state.prompts_drawn;
  if (saved.continuable) {
    record.policy = SavedTrainer{saved.policy.state_hash(), updates.policy_applied()};
    if (updates.critic_applied().has_value()) {
      record.critic = SavedTrainer{saved.critic.state_hash(), *updates.critic_applied()};
    }
  }
  record.metrics = metrics;
  record.has_evaluation = has_evaluation;
  QUARTET_RETURN_IF_ERROR(run_.folder.CommitCheckpoint(record, run_.config.train().max_ckpt_num()));
  last_policy_ = absl::StrCat("checkpoints/", saved.policy.folder());
  last_step_ = state.steps_done;
  return absl::OkStatus();
}

}  // namespace quartet

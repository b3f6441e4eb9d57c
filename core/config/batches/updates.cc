#include "core/config/batches/updates.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/division.h"
#include "core/config/services.h"
#include "core/rl/options/policy_losses.h"

namespace quartet {
namespace {

// "4 optimizer steps a batch, of up to 32 answers, in each of 2 epochs"
std::string Described(int64_t updates, int64_t largest, int64_t epochs) {
  return absl::StrCat(updates, updates == 1 ? " optimizer step" : " optimizer steps", " a batch, of ",
                      updates == 1 ? "" : "up to ", largest, " answers",
                      epochs == 1 ? "" : absl::StrCat(", in each of ", epochs, " epochs"));
}

}  // namespace

int64_t SequencesPerBatch(const RunConfig& c) {
  return int64_t{c.rollout().rollout_batch_size()} * c.rollout().n_samples_per_prompt();
}

int64_t UpdatesPerBatch(const RunConfig& c) {
  const TrainConfig& t = c.train();
  return t.has_updates_per_batch() ? t.updates_per_batch() : CeilDivide(SequencesPerBatch(c), t.train_batch_size());
}

int64_t CriticUpdatesPerBatch(const RunConfig& c) {
  const TrainConfig& t = c.train();
  return t.has_critic_updates_per_batch() ? t.critic_updates_per_batch()
                                          : CeilDivide(SequencesPerBatch(c), t.critic_train_batch_size());
}

int32_t TrainBatchSize(const RunConfig& c) {
  const TrainConfig& t = c.train();
  return t.has_updates_per_batch() ? static_cast<int32_t>(CeilDivide(SequencesPerBatch(c), t.updates_per_batch()))
                                   : t.train_batch_size();
}

int32_t CriticTrainBatchSize(const RunConfig& c) {
  const TrainConfig& t = c.train();
  return t.has_critic_updates_per_batch()
             ? static_cast<int32_t>(CeilDivide(SequencesPerBatch(c), t.critic_updates_per_batch()))
             : t.critic_train_batch_size();
}

std::string DescribeUpdates(const RunConfig& c) {
  const AlgorithmConfig& a = c.algorithm();
  const int64_t updates = UpdatesPerBatch(c);
  std::string text = absl::StrCat("the policy ", Described(updates, TrainBatchSize(c), a.max_epochs()));
  std::vector<std::string> idle;
  // Behind the first optimizer step the weights differ from those that the old log-probabilities and values are of.
  if (updates * a.max_epochs() == 1 && FindPolicyLoss(a.policy_loss())->has_ratio &&
      a.old_log_prob_source() != "rollout") {
    idle.push_back("algorithm.eps_clip");
    if (a.dual_clip() > 0) idle.push_back("algorithm.dual_clip");
  }
  if (UsesCritic(c)) {
    const int64_t critic = CriticUpdatesPerBatch(c);
    absl::StrAppend(&text, "; the critic ", Described(critic, CriticTrainBatchSize(c), a.critic_epochs()));
    if (critic * a.critic_epochs() == 1 && a.value_clip() > 0) idle.push_back("algorithm.value_clip");
  }
  if (!idle.empty()) {
    absl::StrAppend(&text, "\n  no effect has ", absl::StrJoin(idle, ", "),
                    ": what is clipped has not changed before a batch's first optimizer step; train.updates_per_batch "
                    "(or a smaller train.train_batch_size), or algorithm.max_epochs, makes more of them");
  }
  return text;
}

}  // namespace quartet

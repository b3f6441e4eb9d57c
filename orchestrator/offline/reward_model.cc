#include "orchestrator/offline/reward_model.h"

#include <vector>

#include "core/base/status_macros.h"
#include "orchestrator/offline/pair_batch.h"

namespace quartet {
namespace {

class RewardModel final : public OfflineMethod {
 public:
  RewardModel(PreferencePairs& pairs, PreferencePairs* held_out, CriticTrainerClient& critic_trainer)
      : pairs_(pairs), held_out_(held_out), critic_trainer_(critic_trainer) {}

  OfflinePlan plan() const override {
    return {.name = "reward_model", .title = "reward model", .section = "preference", .model = "critic"};
  }
  const Dataset& rows() const override { return pairs_.rows(); }
  uint64_t rows_hash() const override { return pairs_.hash(); }
  TrainerClient& trainer() override { return critic_trainer_; }

  absl::StatusOr<OfflineStep> Step(int64_t step, double learning_rate, int64_t begin, int64_t count) override {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<PreferencePair> pairs, pairs_.Take(begin, count));
    CriticUpdateHeader header;
    header.set_learning_rate(learning_rate);
    header.set_loss(CriticUpdateHeader::LOSS_PAIRWISE);
    QUARTET_ASSIGN_OR_RETURN(const CriticUpdateReply reply,
                             critic_trainer_.Update(static_cast<uint64_t>(step), header, TrainingPairs(pairs)));
    return StepOf(reply);
  }

  absl::StatusOr<std::optional<PairStats>> Judge() override {
    return JudgePairs(held_out_, [this](SequenceSpan sequences) -> absl::StatusOr<std::vector<double>> {
      QUARTET_ASSIGN_OR_RETURN(const std::vector<float> rewards, critic_trainer_.Rewards(sequences));
      return std::vector<double>(rewards.begin(), rewards.end());
    });
  }

 private:
  PreferencePairs& pairs_;
  PreferencePairs* const held_out_;
  CriticTrainerClient& critic_trainer_;
};

}  // namespace

absl::StatusOr<OfflineSummary> RunRewardModel(const OfflineRun& run, PreferencePairs& pairs, PreferencePairs* held_out,
                                              CriticTrainerClient& critic_trainer) {
  RewardModel reward_model(pairs, held_out, critic_trainer);
  return RunOffline(run, reward_model);
}

}  // namespace quartet

#include "orchestrator/fine_tuning/reward_model.h"

#include <vector>

#include "core/base/status_macros.h"
#include "orchestrator/fine_tuning/pair_batch.h"

namespace quartet {
namespace {

class RewardModel final : public OfflineMethod {
 public:
  explicit RewardModel(const RewardModelRun& run) : run_(run) {}

  OfflinePlan plan() const override {
    return PreferencePlan(run_.config, "reward_model", "reward model", "critic", "critic");
  }
  const Dataset& rows() const override { return run_.pairs.rows(); }
  uint64_t rows_hash() const override { return run_.pairs.hash(); }
  TrainerClient& trainer() override { return run_.critic_trainer; }

  absl::StatusOr<OfflineStep> Step(int64_t step, double learning_rate, int64_t begin, int64_t count) override {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<PreferencePair> pairs, run_.pairs.Take(begin, count));
    CriticUpdateHeader header;
    header.set_learning_rate(learning_rate);
    header.set_loss(CriticUpdateHeader::LOSS_PAIRWISE);
    QUARTET_ASSIGN_OR_RETURN(const CriticUpdateReply reply,
                             run_.critic_trainer.Update(static_cast<uint64_t>(step), header, TrainingPairs(pairs)));
    return StepOf(reply);
  }

  absl::StatusOr<std::optional<PairStats>> Judge() override {
    return JudgePairs(
        run_.held_out, [this](const std::vector<TokenSequence>& sequences) -> absl::StatusOr<std::vector<double>> {
          QUARTET_ASSIGN_OR_RETURN(const std::vector<float> rewards, run_.critic_trainer.Rewards(sequences));
          return std::vector<double>(rewards.begin(), rewards.end());
        });
  }

 private:
  const RewardModelRun& run_;
};

}  // namespace

absl::StatusOr<OfflineSummary> RunRewardModel(const RewardModelRun& run) {
  RewardModel reward_model(run);
  return RunOffline({.config = run.config,
                     .vocab_size = run.tokenizer.vocab_size(),
                     .method = reward_model,
                     .folder = run.folder,
                     .view = run.view,
                     .resume = run.resume});
}

}  // namespace quartet

#include "orchestrator/fine_tuning/dpo.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/rl/token_arrays.h"
#include "orchestrator/fine_tuning/pair_batch.h"

namespace quartet {
namespace {

class Dpo final : public OfflineMethod {
 public:
  explicit Dpo(const DpoRun& run) : run_(run), preference_(run.config.preference()) {}

  OfflinePlan plan() const override { return PreferencePlan(run_.config, "dpo", "DPO", "actor", "policy"); }
  const Dataset& rows() const override { return run_.pairs.rows(); }
  uint64_t rows_hash() const override { return run_.pairs.hash(); }
  TrainerClient& trainer() override { return run_.policy_trainer; }

  absl::Status MeetOthers(const ServiceInfo& trainer, const OnLoading& on_loading) override {
    QUARTET_ASSIGN_OR_RETURN(
        const ServiceInfo scorer,
        CheckService(run_.scorer, run_.config, run_.tokenizer.vocab_size(), run_.config.actor().max_len(), on_loading));
    return CheckCpuKernels({&trainer, &scorer});
  }

  absl::StatusOr<OfflineStep> Step(int64_t step, double learning_rate, int64_t begin, int64_t count) override {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<PreferencePair> pairs, run_.pairs.Take(begin, count));
    QUARTET_ASSIGN_OR_RETURN(const auto reference, run_.scorer.ReferenceLogProbs(kTemperature, SequencesOf(pairs)));
    std::vector<TrainingSequence> batch = TrainingPairs(pairs);
    for (size_t i = 0; i < batch.size(); ++i) {
      AddArray(kReferenceLogProbs, &batch[i]).Assign(reference[i].begin(), reference[i].end());
      AddArray(kLossWeights, &batch[i]).Resize(static_cast<int>(reference[i].size()), TokenWeight(reference[i].size()));
    }
    PolicyUpdateHeader header;
    header.set_temperature(kTemperature);
    header.set_learning_rate(learning_rate);
    PolicyLossConfig* loss = header.mutable_loss();
    loss->set_kind(IsIpo() ? PolicyLossConfig::KIND_IPO : PolicyLossConfig::KIND_DPO);
    loss->set_beta(preference_.beta());
    loss->set_label_smoothing(preference_.label_smoothing());
    QUARTET_ASSIGN_OR_RETURN(const PolicyUpdateReply reply,
                             run_.policy_trainer.Update(static_cast<uint64_t>(step), header, batch));
    return StepOf(reply);
  }

  absl::StatusOr<std::optional<PairStats>> Judge() override {
    return JudgePairs(run_.held_out,
                      [this](const std::vector<TokenSequence>& sequences) { return Rewards(sequences); });
  }

 private:
  static constexpr float kTemperature = 1;

  bool IsIpo() const { return preference_.loss() == "ipo"; }
  // Within the log-probability of an answer of so many tokens.
  float TokenWeight(size_t tokens) const { return IsIpo() ? 1.0f / static_cast<float>(tokens) : 1.0f; }

  // As PairStats has them.
  absl::StatusOr<std::vector<double>> Rewards(const std::vector<TokenSequence>& sequences) {
    QUARTET_ASSIGN_OR_RETURN(const auto reference, run_.scorer.ReferenceLogProbs(kTemperature, sequences));
    QUARTET_ASSIGN_OR_RETURN(const auto policy, run_.policy_trainer.LogProbs(kTemperature, sequences));
    std::vector<double> rewards;
    for (size_t i = 0; i < sequences.size(); ++i) {
      double sum = 0;
      for (size_t t = 0; t < policy[i].size(); ++t) sum += static_cast<double>(policy[i][t]) - reference[i][t];
      rewards.push_back(preference_.beta() * TokenWeight(policy[i].size()) * sum);
    }
    return rewards;
  }

  const DpoRun& run_;
  const PreferenceConfig& preference_;
};

}  // namespace

absl::StatusOr<OfflineSummary> RunDpo(const DpoRun& run) {
  Dpo dpo(run);
  return RunOffline({.config = run.config,
                     .vocab_size = run.tokenizer.vocab_size(),
                     .method = dpo,
                     .folder = run.folder,
                     .view = run.view,
                     .resume = run.resume});
}

}  // namespace quartet

#include "orchestrator/offline/dpo.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/rl/options/token_arrays.h"
#include "orchestrator/offline/pair_batch.h"

namespace quartet {
namespace {

class Dpo final : public OfflineMethod {
 public:
  Dpo(const OfflineRun& run, PreferencePairs& pairs, PreferencePairs* held_out, PolicyTrainerClient& policy_trainer,
      ScorerClient* scorer)
      : run_(run),
        preference_(run.config.preference()),
        pairs_(pairs),
        held_out_(held_out),
        policy_trainer_(policy_trainer),
        scorer_(scorer) {}

  OfflinePlan plan() const override {
    return {.name = "dpo", .title = "DPO", .section = "preference", .model = "actor"};
  }
  const Dataset& rows() const override { return pairs_.rows(); }
  uint64_t rows_hash() const override { return pairs_.hash(); }
  TrainerClient& trainer() override { return policy_trainer_; }
  std::vector<ServiceClient*> services() override {
    if (scorer_ == nullptr) return {&policy_trainer_};
    return {&policy_trainer_, scorer_};
  }

  absl::Status MeetOthers(const ServiceInfo& trainer, const OnLoading& on_loading) override {
    if (scorer_ == nullptr) return absl::OkStatus();
    QUARTET_ASSIGN_OR_RETURN(const ServiceInfo scorer, CheckService(*scorer_, run_.config, run_.tokenizer.vocab_size(),
                                                                    run_.config.actor().max_len(), on_loading));
    return CheckCpuKernels({&trainer, &scorer});
  }

  absl::StatusOr<OfflineStep> Step(int64_t step, double learning_rate, int64_t begin, int64_t count) override {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<PreferencePair> pairs, pairs_.Take(begin, count));
    QUARTET_ASSIGN_OR_RETURN(const auto reference, ReferenceLogProbs(SequencesOf(pairs)));
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
                             policy_trainer_.Update(static_cast<uint64_t>(step), header, batch));
    return StepOf(reply);
  }

  absl::StatusOr<std::optional<PairStats>> Judge() override {
    return JudgePairs(held_out_, [this](SequenceSpan sequences) { return Rewards(sequences); });
  }

 private:
  static constexpr float kTemperature = 1;

  bool IsIpo() const { return preference_.loss() == "ipo"; }
  // Within the log-probability of an answer of so many tokens.
  float TokenWeight(size_t tokens) const { return IsIpo() ? 1.0f / static_cast<float>(tokens) : 1.0f; }

  absl::StatusOr<std::vector<std::vector<float>>> ReferenceLogProbs(SequenceSpan sequences) {
    if (scorer_ != nullptr) return scorer_->ReferenceLogProbs(kTemperature, sequences);
    return policy_trainer_.LogProbs(kTemperature, sequences, /*without_adapters=*/true);
  }

  // As PairStats has them.
  absl::StatusOr<std::vector<double>> Rewards(SequenceSpan sequences) {
    QUARTET_ASSIGN_OR_RETURN(const auto reference, ReferenceLogProbs(sequences));
    QUARTET_ASSIGN_OR_RETURN(const auto policy, policy_trainer_.LogProbs(kTemperature, sequences));
    std::vector<double> rewards;
    for (size_t i = 0; i < sequences.size(); ++i) {
      double sum = 0;
      for (size_t t = 0; t < policy[i].size(); ++t) sum += static_cast<double>(policy[i][t]) - reference[i][t];
      rewards.push_back(preference_.beta() * TokenWeight(policy[i].size()) * sum);
    }
    return rewards;
  }

  const OfflineRun& run_;
  const PreferenceConfig& preference_;
  PreferencePairs& pairs_;
  PreferencePairs* const held_out_;
  PolicyTrainerClient& policy_trainer_;
  ScorerClient* const scorer_;  // of the reference; null: that is the policy without its adapters
};

}  // namespace

absl::StatusOr<OfflineSummary> RunDpo(const OfflineRun& run, PreferencePairs& pairs, PreferencePairs* held_out,
                                      PolicyTrainerClient& policy_trainer, ScorerClient* scorer) {
  Dpo dpo(run, pairs, held_out, policy_trainer, scorer);
  return RunOffline(run, dpo);
}

}  // namespace quartet

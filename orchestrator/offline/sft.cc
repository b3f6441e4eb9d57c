#include "orchestrator/offline/sft.h"

#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/rl/aggregation.h"
#include "core/rl/options/token_arrays.h"

namespace quartet {
namespace {

class Sft final : public OfflineMethod {
 public:
  Sft(SftExamples& examples, PolicyTrainerClient& policy_trainer)
      : examples_(examples), policy_trainer_(policy_trainer) {}

  OfflinePlan plan() const override {
    return {.name = "sft", .title = "fine-tuning", .section = "sft", .model = "actor"};
  }
  const Dataset& rows() const override { return examples_.rows(); }
  uint64_t rows_hash() const override { return examples_.hash(); }
  TrainerClient& trainer() override { return policy_trainer_; }

  absl::StatusOr<OfflineStep> Step(int64_t step, double learning_rate, int64_t begin, int64_t count) override {
    QUARTET_ASSIGN_OR_RETURN(std::vector<TokenSequence> examples, examples_.Take(begin, count));
    std::vector<TrainingSequence> batch(examples.size());
    std::vector<AggregatedSequence> parts;
    for (size_t i = 0; i < batch.size(); ++i) {
      TokenSequence& tokens = *batch[i].mutable_tokens();
      tokens = std::move(examples[i]);
      tokens.set_index(i);
      parts.push_back({.action_tokens = CountActions(tokens)});
    }
    const std::vector<float> weights = LossWeights(parts, LossAggregation::kTokenMean);
    for (size_t i = 0; i < batch.size(); ++i) {
      AddArray(kLossWeights, &batch[i]).Resize(static_cast<int>(parts[i].action_tokens), weights[i]);
    }
    PolicyUpdateHeader header;
    header.set_temperature(1);
    header.mutable_loss()->set_kind(PolicyLossConfig::KIND_SFT);
    header.set_learning_rate(learning_rate);
    QUARTET_ASSIGN_OR_RETURN(const PolicyUpdateReply reply,
                             policy_trainer_.Update(static_cast<uint64_t>(step), header, batch));
    return StepOf(reply);
  }

 private:
  SftExamples& examples_;
  PolicyTrainerClient& policy_trainer_;
};

}  // namespace

absl::StatusOr<OfflineSummary> RunSft(const OfflineRun& run, SftExamples& examples,
                                      PolicyTrainerClient& policy_trainer) {
  Sft sft(examples, policy_trainer);
  return RunOffline(run, sft);
}

}  // namespace quartet

#include "orchestrator/fine_tuning/sft.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/rl/aggregation.h"
#include "core/rl/token_arrays.h"

namespace quartet {
namespace {

class Sft final : public OfflineMethod {
 public:
  explicit Sft(const SftRun& run) : run_(run) {}

  OfflinePlan plan() const override {
    const SftConfig& sft = run_.config.sft();
    return {.name = "sft",
            .title = "fine-tuning",
            .section = "sft",
            .model = "actor",
            .saved = "policy",
            .batch_size = sft.batch_size(),
            .max_steps = sft.max_steps(),
            .max_epochs = sft.max_epochs(),
            .learning_rate = sft.learning_rate()};
  }
  const Dataset& rows() const override { return run_.examples.rows(); }
  uint64_t rows_hash() const override { return run_.examples.hash(); }
  TrainerClient& trainer() override { return run_.policy_trainer; }

  absl::StatusOr<OfflineStep> Step(int64_t step, double learning_rate, int64_t begin, int64_t count) override {
    QUARTET_ASSIGN_OR_RETURN(std::vector<TokenSequence> examples, run_.examples.Take(begin, count));
    std::vector<TrainingSequence> batch(examples.size());
    std::vector<AggregatedSequence> parts;
    for (size_t i = 0; i < batch.size(); ++i) {
      TokenSequence& tokens = *batch[i].mutable_tokens();
      tokens = std::move(examples[i]);
      tokens.set_index(i);
      parts.push_back({.action_tokens = std::count(tokens.action_mask().begin(), tokens.action_mask().end(), true)});
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
                             run_.policy_trainer.Update(static_cast<uint64_t>(step), header, batch));
    return StepOf(reply);
  }

 private:
  const SftRun& run_;
};

}  // namespace

absl::StatusOr<OfflineSummary> RunSft(const SftRun& run) {
  Sft sft(run);
  return RunOffline({.config = run.config,
                     .vocab_size = run.tokenizer.vocab_size(),
                     .method = sft,
                     .folder = run.folder,
                     .view = run.view,
                     .resume = run.resume});
}

}  // namespace quartet

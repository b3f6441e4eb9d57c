// Twenty optimizer steps of DPO, IPO and supervised fine-tuning are TRL's.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/rl/testing/token_arrays.h"
#include "core/training/calls/sequence_calls.h"
#include "core/training/engine/update_call.h"
#include "core/training/testing/golden_batch.h"
#include "policy_trainer/policy_engine.h"
#include "proto/policy_trainer.pb.h"

namespace quartet {
namespace {

// tools/golden/make_preference_golden.py: DPOTrainer and SFTTrainer on the same model, in float32.
nlohmann::json PreferenceGolden() {
  return nlohmann::json::parse(std::ifstream("policy_trainer/testdata/preference_steps.json"));
}

TokenSequence Sequence(uint64_t index, const std::vector<int>& prompt, const std::vector<int>& answer) {
  TokenSequence sequence;
  sequence.set_index(index);
  for (int id : prompt) sequence.add_ids(id);
  for (int id : answer) sequence.add_ids(id);
  for (size_t t = 0; t < prompt.size() + answer.size(); ++t) sequence.add_action_mask(t >= prompt.size());
  return sequence;
}

class PreferenceStepsTest : public ::testing::TestWithParam<int> {
 protected:
  PreferenceStepsTest() : golden_(PreferenceGolden()), config_(TestConfig("core/model/testdata/llama", 3)) {
    SetGoldenOptimizer(golden_, config_.mutable_actor());
  }

  // The examples of one step, as the orchestrator would send them, without reference log-probabilities.
  std::vector<TrainingSequence> Step(const nlohmann::json& run, size_t step) const {
    const size_t pairs = golden_["pairs_of_a_step"];
    const bool of_pairs = run["loss"] != "sft";
    std::vector<TrainingSequence> batch;
    for (size_t i = step * pairs; i < (step + 1) * pairs; ++i) {
      const auto& pair = golden_["pairs"][i];
      for (const char* key : {"chosen_ids", "rejected_ids"}) {
        if (!of_pairs && key[0] == 'r') continue;
        TrainingSequence& sequence = batch.emplace_back();
        *sequence.mutable_tokens() = Sequence(batch.size(), pair["prompt_ids"], pair[key]);
        MutableArray(kLossWeights, &sequence)
            .Resize(static_cast<int>(pair[key].size()), run["loss"] == "ipo" ? 1.0f / pair[key].size() : 1.0f);
        if (of_pairs && key[0] == 'c') sequence.mutable_pair()->set_weight(1.0f / pairs);
      }
    }
    if (!of_pairs) {  // a mean over all tokens of the step
      float tokens = 0;
      for (const TrainingSequence& sequence : batch) tokens += ArrayOf(sequence, kLossWeights).size();
      for (TrainingSequence& sequence : batch) {
        for (float& weight : MutableArray(kLossWeights, &sequence)) weight = 1 / tokens;
      }
    }
    return batch;
  }

  // The reference is the model before the first step.
  void AddReference(std::vector<std::vector<TrainingSequence>>* batches) const {
    RunEngineRanks(1, [&](const RankContext& context) {
      auto reference = PolicyEngine::Load(config_.actor(), config_.seed(), context);
      ASSERT_TRUE(reference.ok()) << reference.status();
      for (std::vector<TrainingSequence>& batch : *batches) {
        ForwardCall call;
        call.set_temperature(1);
        call.add_micro_batch_sizes(static_cast<uint32_t>(batch.size()));
        std::vector<TokenSequence> tokens;
        for (const TrainingSequence& sequence : batch) tokens.push_back(sequence.tokens());
        std::vector<TokenValues> replies;
        ASSERT_TRUE((*reference)->Forward(call, tokens, &replies).ok());
        for (size_t i = 0; i < batch.size(); ++i) MutableArray(kReferenceLogProbs, &batch[i]) = replies[i].values();
      }
    });
  }

  const nlohmann::json golden_;
  RunConfig config_;
};

TEST_P(PreferenceStepsTest, LossesOfTwentyStepsAreTrls) {
  for (const auto& run : golden_["runs"]) {
    const std::vector<double> expected = run["losses"];
    const std::string loss = run["loss"];
    PolicyUpdateHeader header;
    header.set_temperature(1);
    header.set_learning_rate(golden_["learning_rate"]);
    header.mutable_loss()->set_kind(loss == "sft"   ? PolicyLossConfig::KIND_SFT
                                    : loss == "ipo" ? PolicyLossConfig::KIND_IPO
                                                    : PolicyLossConfig::KIND_DPO);
    if (loss != "sft") header.mutable_loss()->set_beta(run["beta"]);
    std::vector<std::vector<TrainingSequence>> batches;
    for (size_t step = 0; step < expected.size(); ++step) batches.push_back(Step(run, step));
    if (loss != "sft") AddReference(&batches);
    std::mutex mutex;
    std::vector<double> losses(expected.size());  // summed over ranks
    RunEngineRanks(GetParam(), [&](const RankContext& context) {
      auto engine = PolicyEngine::Load(config_.actor(), config_.seed(), context);
      ASSERT_TRUE(engine.ok()) << engine.status();
      for (size_t step = 0; step < expected.size(); ++step) {
        const std::vector<TrainingSequence>& batch = batches[step];
        std::vector<const TokenSequence*> tokens;
        for (const TrainingSequence& sequence : batch) tokens.push_back(&sequence.tokens());
        // Two pairs, or sequences, a micro-batch.
        const MicroBatching batching = {.limit = {.sequences = loss == "sft" ? 2 : 4}};
        const auto split = (loss == "sft" ? SplitSequences : SplitPairs)(tokens, context.world_size, batching);
        ASSERT_TRUE(split.ok()) << split.status();
        std::vector<TrainingSequence> mine;
        for (size_t item : split->items[context.rank]) mine.push_back(batch[item]);
        const std::vector<uint32_t>& sizes = split->micro_batch_sizes[context.rank];

        UpdateCall call = MakeUpdateCall(header);
        call.mutable_micro_batch_sizes()->Assign(sizes.begin(), sizes.end());
        UpdateSums sums;
        const absl::Status status = (*engine)->Update(call, mine, &sums);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_EQ(sums.pairs(), loss == "sft" ? 0 : mine.size() / 2);
        std::lock_guard lock(mutex);
        losses[step] += sums.loss();
      }
    });
    double largest = 0;
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(losses[step], expected[step], 1e-5 * std::max(1.0, std::abs(expected[step])))
          << loss << " step " << step;
      largest = std::max(largest, std::abs(losses[step] - expected[step]) / std::max(1.0, std::abs(expected[step])));
    }
    std::printf("%s on %d ranks: largest difference from TRL %.1e\n", loss.c_str(), GetParam(), largest);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PreferenceStepsTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace quartet

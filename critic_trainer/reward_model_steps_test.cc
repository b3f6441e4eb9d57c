// Twenty optimizer steps of a reward model are TRL's, and its rewards transformers'.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/training/calls/sequence_calls.h"
#include "core/training/engine/update_call.h"
#include "core/training/testing/golden_batch.h"
#include "critic_trainer/critic_engine.h"
#include "proto/critic_trainer.pb.h"

namespace quartet {
namespace {

class RewardModelStepsTest : public ::testing::TestWithParam<int> {
 protected:
  // tools/golden/make_preference_golden.py: RewardTrainer on the same model, in float32.
  RewardModelStepsTest()
      : golden_(nlohmann::json::parse(std::ifstream("critic_trainer/testdata/preference_steps.json"))),
        config_(TestConfig("core/model/testdata/llama_critic", 3)) {
    SetGoldenOptimizer(golden_, config_.mutable_critic());
  }

  const nlohmann::json golden_;
  RunConfig config_;
};

TEST_P(RewardModelStepsTest, LossesOfTwentyStepsAreTrls) {
  for (const auto& run : golden_["runs"]) {
    const std::vector<double> expected = run["losses"];
    CriticUpdateHeader header;
    header.set_learning_rate(golden_["learning_rate"]);
    header.set_loss(CriticUpdateHeader::LOSS_PAIRWISE);
    std::mutex mutex;
    std::vector<double> losses(expected.size());  // summed over ranks
    uint64_t pairs = 0;
    RunEngineRanks(GetParam(), [&](const RankContext& context) {
      auto engine = CriticEngine::Load(config_.critic(), config_.seed(), context);
      ASSERT_TRUE(engine.ok()) << engine.status();
      for (size_t step = 0; step < expected.size(); ++step) {
        const std::vector<TrainingSequence> batch = GoldenPairs(golden_, step, run["margin"]);
        std::vector<const TokenSequence*> tokens;
        for (const TrainingSequence& sequence : batch) tokens.push_back(&sequence.tokens());
        const auto split = SplitPairs(tokens, context.world_size, {.limit = {.sequences = 4}});
        ASSERT_TRUE(split.ok()) << split.status();
        std::vector<TrainingSequence> mine;
        for (size_t item : split->items[context.rank]) mine.push_back(batch[item]);
        UpdateCall call = MakeUpdateCall(header);
        const std::vector<uint32_t>& sizes = split->micro_batch_sizes[context.rank];
        call.mutable_micro_batch_sizes()->Assign(sizes.begin(), sizes.end());
        UpdateSums sums;
        const absl::Status status = (*engine)->Update(call, mine, &sums);
        ASSERT_TRUE(status.ok()) << status;
        std::lock_guard lock(mutex);
        losses[step] += sums.loss();
        pairs += sums.pairs();
      }
    });
    EXPECT_EQ(pairs, golden_["pairs"].size());
    double largest = 0;
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(losses[step], expected[step], 1e-5) << "step " << step;
      largest = std::max(largest, std::abs(losses[step] - expected[step]));
    }
    std::printf("reward model, %s margins, on %d ranks: largest difference from TRL %.1e\n",
                run["margin"] ? "with" : "without", GetParam(), largest);
  }
}

TEST_P(RewardModelStepsTest, RewardsOfWholeSequencesAreTransformers) {
  std::mutex mutex;
  const std::vector<TrainingSequence> batch = GoldenPairs(golden_, 0, /*has_margin=*/false);
  std::vector<float> found(batch.size());
  RunEngineRanks(GetParam(), [&](const RankContext& context) {
    auto engine = CriticEngine::Load(config_.critic(), config_.seed(), context);
    ASSERT_TRUE(engine.ok()) << engine.status();
    std::vector<TokenSequence> mine;
    for (size_t i = context.rank; i < batch.size(); i += context.world_size) mine.push_back(batch[i].tokens());
    ForwardCall call;
    call.set_last_token(true);
    call.add_micro_batch_sizes(1);
    call.add_micro_batch_sizes(static_cast<uint32_t>(mine.size() - 1));
    std::vector<TokenValues> replies;
    ASSERT_TRUE((*engine)->Forward(call, mine, &replies).ok());
    std::lock_guard lock(mutex);
    for (const TokenValues& reply : replies) {
      ASSERT_EQ(reply.values_size(), 1);
      found[reply.index() - 1] = reply.values(0);
    }
  });
  EXPECT_THAT(found, ::testing::Pointwise(::testing::FloatNear(1e-5),
                                          golden_["rewards_of_the_first_step"].get<std::vector<float>>()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, RewardModelStepsTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace quartet

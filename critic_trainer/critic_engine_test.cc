#include "critic_trainer/critic_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/rl/options/token_arrays.h"
#include "core/training/engine/update_call.h"
#include "core/training/testing/golden_batch.h"
#include "proto/critic_trainer.pb.h"

namespace quartet {
namespace {

class CriticEngineTest : public ::testing::TestWithParam<int> {
 protected:
  CriticEngineTest()
      : batch_("critic_trainer/testdata/golden.json", {kLossWeights, kOldValues, kReturns}, GetParam(),
               /*micro_batch=*/1),
        config_(TestConfig("core/model/testdata/llama_critic", 3)) {
    SetGoldenOptimizer(golden_, config_.mutable_critic());
  }

  void OnEveryRank(
      const std::function<void(const RankContext&, CriticEngine&, const std::vector<TrainingSequence>&)>& body) {
    quartet::OnEveryRank<CriticEngine>(batch_, config_.critic(), config_.seed(), body);
  }

  std::map<size_t, std::vector<float>> Values(CriticEngine& engine, int rank) const {
    return batch_.Forward(engine, rank, /*temperature=*/0);
  }
  void ExpectValues(CriticEngine& engine, int rank, const std::vector<std::vector<float>>& expected) const {
    batch_.ExpectForward(engine, rank, /*temperature=*/0, expected);
  }

  const GoldenBatch batch_;
  const nlohmann::json& golden_ = batch_.golden;
  RunConfig config_;
};

TEST_P(CriticEngineTest, UpdatesAsTorchDoesOnTransformersModel) {
  const auto& steps = golden_["steps"];
  std::mutex mutex;
  std::vector<UpdateSums> sums(steps.size());  // over ranks
  OnEveryRank([&](const RankContext& context, CriticEngine& engine, const std::vector<TrainingSequence>& mine) {
    std::vector<std::vector<float>> before;
    for (const auto& sequence : golden_["sequences"]) before.push_back(sequence["values"]);
    ExpectValues(engine, context.rank, before);
    for (size_t s = 0; s < steps.size(); ++s) {
      CriticUpdateHeader header;
      header.set_learning_rate(golden_["learning_rate"]);
      header.set_value_clip(golden_["value_clip"]);
      UpdateCall call = MakeUpdateCall(header);
      batch_.SetMicroBatches(context.rank, &call);
      UpdateSums part;
      ASSERT_TRUE(engine.Update(call, mine, &part).ok());
      EXPECT_FALSE(part.skipped());
      EXPECT_NEAR(part.grad_norm() / steps[s]["grad_norm"].get<double>(), 1, 1e-3);
      ExpectValues(engine, context.rank, steps[s]["values"]);
      std::lock_guard lock(mutex);
      sums[s].set_loss(sums[s].loss() + part.loss());
      sums[s].set_clipped(sums[s].clipped() + part.clipped());
      sums[s].set_values(sums[s].values() + part.values());
      sums[s].set_action_tokens(sums[s].action_tokens() + part.action_tokens());
    }
  });
  for (size_t s = 0; s < steps.size(); ++s) {
    const auto actions = static_cast<double>(sums[s].action_tokens());
    EXPECT_NEAR(sums[s].loss(), steps[s]["loss"].get<double>(), 1e-4);
    EXPECT_NEAR(sums[s].clipped() / actions, steps[s]["clip_fraction"].get<double>(), 1e-6);
    EXPECT_NEAR(sums[s].values() / actions, steps[s]["value_mean"].get<double>(), 1e-4);
  }
}

// A language model's folder has an lm_head, which is left alone, and no score.weight.
TEST_P(CriticEngineTest, DrawsANewHeadForALanguageModelFromTheSeedAlone) {
  config_.mutable_critic()->set_pretrain(config_.critic().pretrain() + "/../llama");
  const auto values = [&](uint64_t seed) {
    config_.set_seed(seed);
    std::mutex mutex;
    std::map<size_t, std::vector<float>> all;
    OnEveryRank([&](const RankContext& context, CriticEngine& engine, const std::vector<TrainingSequence>&) {
      const auto mine = Values(engine, context.rank);
      std::lock_guard lock(mutex);
      all.insert(mine.begin(), mine.end());
    });
    return all;
  };
  const auto first = values(1), again = values(1), other = values(2);
  ASSERT_EQ(first.size(), batch_.sequences.size());
  for (const auto& [item, v] : first) {
    EXPECT_THAT(again.at(item), ::testing::Pointwise(::testing::FloatNear(1e-5), v));
    EXPECT_NE(other.at(item), v);
    EXPECT_NE(v[0], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CriticEngineTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace quartet

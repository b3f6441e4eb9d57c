#include "critic_trainer/critic_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/rl/testing/token_arrays.h"
#include "core/training/batch/batch_split.h"
#include "core/training/calls/update_call.h"
#include "core/training/testing/engine_ranks.h"
#include "proto/critic_trainer.pb.h"

namespace quartet {
namespace {

// tools/golden/make_service_golden.py: torch and transformers, one sequence a forward.
nlohmann::json Golden() { return nlohmann::json::parse(std::ifstream("critic_trainer/testdata/golden.json")); }

std::vector<TrainingSequence> Sequences(const nlohmann::json& golden) {
  std::vector<TrainingSequence> sequences;
  for (const auto& from : golden["sequences"]) {
    TrainingSequence& to = sequences.emplace_back();
    to.mutable_tokens()->set_index(sequences.size() * 10);
    for (int id : from["ids"]) to.mutable_tokens()->add_ids(id);
    for (bool action : from["action_mask"]) to.mutable_tokens()->add_action_mask(action);
    for (double x : from["loss_weights"]) MutableArray(kLossWeights, &to).Add(static_cast<float>(x));
    for (double x : from["old_values"]) MutableArray(kOldValues, &to).Add(static_cast<float>(x));
    for (double x : from["returns"]) MutableArray(kReturns, &to).Add(static_cast<float>(x));
  }
  return sequences;
}

class CriticEngineTest : public ::testing::TestWithParam<int> {
 protected:
  CriticEngineTest()
      : golden_(Golden()), sequences_(Sequences(golden_)), config_(TestConfig("core/model/testdata/llama_critic", 3)) {
    TrainerConfig* critic = config_.mutable_critic();
    critic->set_adam_beta1(golden_["adamw"]["beta1"]);
    critic->set_adam_beta2(golden_["adamw"]["beta2"]);
    critic->set_adam_eps(golden_["adamw"]["eps"]);
    critic->set_weight_decay(golden_["adamw"]["weight_decay"]);
    critic->set_max_norm(golden_["max_norm"]);
    std::vector<BatchItem> batch;
    for (const TrainingSequence& sequence : sequences_) {
      const int tokens = sequence.tokens().ids_size();
      batch.push_back({.tokens = tokens, .cost = static_cast<double>(tokens)});
    }
    split_ = SplitBatch(batch, GetParam(), {.sequences = 1});
  }

  void OnEveryRank(
      const std::function<void(const RankContext&, CriticEngine&, const std::vector<TrainingSequence>&)>& body) {
    RunEngineRanks(GetParam(), [&](const RankContext& context) {
      auto engine = CriticEngine::Load(config_.critic(), config_.seed(), context);
      ASSERT_TRUE(engine.ok()) << engine.status();
      std::vector<TrainingSequence> mine;
      for (size_t item : split_.items[context.rank]) mine.push_back(sequences_[item]);
      body(context, **engine, mine);
    });
  }

  template <typename Call>
  void SetMicroBatches(int rank, Call* call) const {
    const std::vector<uint32_t>& sizes = split_.micro_batch_sizes[rank];
    call->mutable_micro_batch_sizes()->Assign(sizes.begin(), sizes.end());
  }

  // This rank's values, by item of the batch.
  std::map<size_t, std::vector<float>> Values(CriticEngine& engine, int rank) {
    std::vector<TokenSequence> tokens;
    for (size_t item : split_.items[rank]) tokens.push_back(sequences_[item].tokens());
    ForwardCall call;
    SetMicroBatches(rank, &call);
    std::vector<TokenValues> replies;
    const absl::Status status = engine.Forward(call, tokens, &replies);
    EXPECT_TRUE(status.ok()) << status;
    std::map<size_t, std::vector<float>> values;
    for (size_t i = 0; i < replies.size(); ++i) {
      EXPECT_EQ(replies[i].index(), tokens[i].index());
      values[split_.items[rank][i]].assign(replies[i].values().begin(), replies[i].values().end());
    }
    return values;
  }

  void ExpectValues(CriticEngine& engine, int rank, const std::vector<std::vector<float>>& expected) {
    for (const auto& [item, values] : Values(engine, rank)) {
      EXPECT_THAT(values, ::testing::Pointwise(::testing::FloatNear(2e-4), expected[item]));
    }
  }

  const nlohmann::json golden_;
  const std::vector<TrainingSequence> sequences_;
  RunConfig config_;
  BatchSplit split_;
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
      SetMicroBatches(context.rank, &call);
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
  ASSERT_EQ(first.size(), sequences_.size());
  for (const auto& [item, v] : first) {
    EXPECT_THAT(again.at(item), ::testing::Pointwise(::testing::FloatNear(1e-5), v));
    EXPECT_NE(other.at(item), v);
    EXPECT_NE(v[0], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CriticEngineTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace quartet

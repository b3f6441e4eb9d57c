// What the critic trainer saves is what the scorer reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "core/config/services.h"
#include "core/training/testing/engine_ranks.h"
#include "critic_trainer/critic_engine.h"
#include "scorer/scorer_engine.h"

namespace quartet {
namespace {

std::vector<TokenSequence> Sequences(int vocab_size) {
  std::mt19937 random(3);
  std::vector<TokenSequence> sequences(5);
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].set_index(i);
    for (uint32_t n = 1 + random() % 20; n > 0; --n) {
      sequences[i].add_ids(static_cast<int32_t>(random() % vocab_size));
      sequences[i].add_action_mask(false);
    }
  }
  return sequences;
}

std::vector<float> ValuesOf(const std::vector<TokenValues>& replies) {
  std::vector<float> values;
  for (const TokenValues& reply : replies) values.push_back(reply.values(0));
  return values;
}

// A language model's folder, whose head is drawn.
TEST(RewardModelFolder, OfTheCriticTrainerGivesTheSameRewardsInTheScorer) {
  RunConfig config = TestConfig("core/model/testdata/llama", 3);
  const std::vector<TokenSequence> sequences = Sequences(101);
  ForwardCall call;
  call.set_last_token(true);
  call.add_micro_batch_sizes(static_cast<uint32_t>(sequences.size()));
  const std::string folder = NewTestFolder("reward_model");
  std::vector<TokenValues> taught, read;
  RunEngineRanks(1, [&](const RankContext& context) {
    auto critic = CriticEngine::Load(config.critic(), config.seed(), context);
    ASSERT_TRUE(critic.ok()) << critic.status();
    ASSERT_TRUE((*critic)->Forward(call, sequences, &taught).ok());
    SaveCall save;
    save.set_folder(folder);
    SaveSummary summary;
    const absl::Status saved = (*critic)->Save(save, &summary);
    ASSERT_TRUE(saved.ok()) << saved;
  });
  const auto written = nlohmann::json::parse(std::ifstream(folder + "/config.json"));
  EXPECT_EQ(written["architectures"], nlohmann::json({"LlamaForSequenceClassification"}));
  EXPECT_EQ(written["id2label"].size(), 1) << "transformers takes num_labels from it";

  config.mutable_algorithm()->mutable_kl()->set_init_kl_coef(0);
  RewardSource* source = config.mutable_reward()->add_source();
  source->set_model(folder);
  source->set_dtype("fp32");
  RunEngineRanks(1, [&](const RankContext& context) {
    auto scorer = ScorerEngine::Load(ScoringModels(config), context);
    ASSERT_TRUE(scorer.ok()) << scorer.status();
    ASSERT_TRUE((*scorer)->Rewards(call, sequences, &read).ok());
  });
  ASSERT_EQ(taught.size(), sequences.size());
  EXPECT_THAT(ValuesOf(read), ::testing::Pointwise(::testing::FloatEq(), ValuesOf(taught)));
}

}  // namespace
}  // namespace quartet

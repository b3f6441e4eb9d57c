#include "scorer/scorer_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/config/services.h"
#include "core/model/testing/padded_folder.h"
#include "core/training/batch/batch_split.h"
#include "core/training/testing/engine_ranks.h"

namespace quartet {
namespace {

constexpr char kTestdata[] = "core/model/testdata/";

// tools/golden/make_service_golden.py: rewards of llama_critic, log-probabilities of llama.
nlohmann::json Golden() { return nlohmann::json::parse(std::ifstream("scorer/testdata/golden.json")); }

std::vector<TokenSequence> Sequences(const nlohmann::json& golden) {
  std::vector<TokenSequence> sequences;
  for (const auto& from : golden["sequences"]) {
    TokenSequence& to = sequences.emplace_back();
    to.set_index(sequences.size() * 10);
    for (int id : from["ids"]) to.add_ids(id);
    for (bool action : from["action_mask"]) to.add_action_mask(action);
  }
  return sequences;
}

class ScorerEngineTest : public ::testing::TestWithParam<int> {
 protected:
  ScorerEngineTest() : config_(TestConfig(std::string(kTestdata) + "llama", 3)) {
    RewardSource* source = config_.mutable_reward()->add_source();
    source->set_rule("exact_match");
    source = config_.mutable_reward()->add_source();
    source->set_model(std::string(kTestdata) + "llama_critic");
    source->set_dtype("fp32");
    source->set_zero_stage(3);
  }

  void ExpectReference();

  // Runs `call` on every rank's part of `sequences`; the replies, by item of the batch.
  std::vector<TokenValues> OnEveryRank(
      const std::vector<TokenSequence>& sequences,
      const std::function<absl::Status(ScorerEngine&, ForwardCall, const std::vector<TokenSequence>&,
                                       std::vector<TokenValues>*)>& call) {
    std::vector<BatchItem> batch;
    for (const TokenSequence& sequence : sequences) {
      batch.push_back({.tokens = sequence.ids_size(), .cost = static_cast<double>(sequence.ids_size())});
    }
    const BatchSplit split = SplitBatch(batch, GetParam(), {.sequences = 1});
    std::vector<TokenValues> replies(sequences.size());
    RunEngineRanks(GetParam(), [&](const RankContext& context) {
      auto engine = ScorerEngine::Load(ReferenceOf(config_), config_.reward(), context, vocabulary_);
      ASSERT_TRUE(engine.ok()) << engine.status();
      std::vector<TokenSequence> mine;
      for (size_t item : split.items[context.rank]) mine.push_back(sequences[item]);
      ForwardCall header;
      const std::vector<uint32_t>& sizes = split.micro_batch_sizes[context.rank];
      header.mutable_micro_batch_sizes()->Assign(sizes.begin(), sizes.end());
      std::vector<TokenValues> part;
      const absl::Status status = call(**engine, header, mine, &part);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(part.size(), mine.size());
      for (size_t i = 0; i < part.size(); ++i) replies[split.items[context.rank][i]] = part[i];
    });
    return replies;
  }

  RunConfig config_;
  int64_t vocabulary_ = 0;
};

TEST_P(ScorerEngineTest, ReadsARewardModelAtTheLastTokenAsTransformersDoes) {
  const nlohmann::json golden = Golden();
  const auto replies =
      OnEveryRank(Sequences(golden), [](ScorerEngine& engine, ForwardCall call, const auto& sequences, auto* part) {
        call.set_model(1);
        return engine.Rewards(call, sequences, part);
      });
  for (size_t i = 0; i < replies.size(); ++i) {
    ASSERT_EQ(replies[i].values_size(), 1);
    EXPECT_NEAR(replies[i].values(0), golden["sequences"][i]["reward"].get<float>(), 1e-4);
  }
}

void ScorerEngineTest::ExpectReference() {
  const nlohmann::json golden = Golden();
  const auto replies =
      OnEveryRank(Sequences(golden), [&](ScorerEngine& engine, ForwardCall call, const auto& sequences, auto* part) {
        call.set_temperature(golden["temperature"]);
        return engine.ReferenceLogProbs(call, sequences, part);
      });
  for (size_t i = 0; i < replies.size(); ++i) {
    const std::vector<float> values(replies[i].values().begin(), replies[i].values().end());
    const std::vector<float> expected = golden["sequences"][i]["log_probs"];
    EXPECT_THAT(values, ::testing::Pointwise(::testing::FloatNear(2e-4), expected));
  }
}

TEST_P(ScorerEngineTest, GivesTheReferencesLogProbabilities) { ExpectReference(); }

TEST_P(ScorerEngineTest, GivesThemWithRowsThatStandForNoTokenToo) {
  const std::string& folder = config_.reference().pretrain();
  vocabulary_ = ReadModelConfig(folder)->vocab_size;
  config_.mutable_reference()->set_pretrain(PaddedFolder(folder, 10, 3));
  ExpectReference();
}

TEST_P(ScorerEngineTest, RefusesARewardModelWithoutAScalarHead) {
  config_.mutable_reward()->mutable_source(1)->set_model(std::string(kTestdata) + "llama");
  RunEngineRanks(GetParam(), [&](const RankContext& context) {
    const absl::Status status = ScorerEngine::Load(ReferenceOf(config_), config_.reward(), context).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("score.weight"));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ScorerEngineTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace quartet

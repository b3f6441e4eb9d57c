#include "scorer/scorer_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
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
      auto engine = ScorerEngine::Load(ScoringModels(config_), context, vocabulary_);
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

TEST_P(ScorerEngineTest, GivesThemFromParametersInHostMemoryToo) {
  config_.mutable_reference()->set_offload_param(true);
  ExpectReference();
}

TEST_P(ScorerEngineTest, GivesThemWithRowsThatStandForNoTokenToo) {
  const std::string& folder = config_.reference().pretrain();
  vocabulary_ = ReadModelConfig(folder)->vocab_size;
  config_.mutable_reference()->set_pretrain(PaddedFolder(folder, 10, 3));
  ExpectReference();
}

// A reference of adapters, and a reward model of them that bring its head; tools/golden/make_lora_golden.py.
TEST_P(ScorerEngineTest, ScoresWithAdaptersAsPeftDoes) {
  constexpr int kSequences = 2, kLength = 13;
  const auto golden = [&](const std::string& model, const std::string& name, auto element) {
    const auto reader = *CheckpointReader::Open(kTestdata + model + "/golden");
    std::vector<decltype(element)> values(reader->tensors().at(name).numel());
    EXPECT_TRUE(reader->ReadRange(name, 0, static_cast<int64_t>(values.size()), values.data()).ok());
    return values;
  };
  const auto sequences_of = [&](const std::string& model) {
    const auto ids = golden(model, "ids", int64_t());
    std::vector<TokenSequence> sequences(kSequences);
    for (int i = 0; i < kSequences * kLength; ++i) {
      sequences[i / kLength].set_index(i / kLength);
      sequences[i / kLength].add_ids(static_cast<int32_t>(ids[i]));
      sequences[i / kLength].add_action_mask(i % kLength != 0);
    }
    return sequences;
  };
  config_.mutable_reference()->set_pretrain(std::string(kTestdata) + "llama_lora");
  config_.mutable_reward()->mutable_source(1)->set_model(std::string(kTestdata) + "llama_critic_lora");
  const std::vector<TokenSequence> sequences = sequences_of("llama_lora");
  const auto log_probs =
      OnEveryRank(sequences, [](ScorerEngine& engine, ForwardCall call, const auto& part_of, auto* part) {
        call.set_temperature(1);
        return engine.ReferenceLogProbs(call, part_of, part);
      });
  const auto logits = golden("llama_lora", "logits", float());
  const size_t vocabulary = logits.size() / (kSequences * kLength);
  for (int s = 0; s < kSequences; ++s) {
    ASSERT_EQ(log_probs[s].values_size(), kLength - 1);
    for (int t = 0; t + 1 < kLength; ++t) {
      const float* row = logits.data() + (s * kLength + t) * vocabulary;
      double sum = 0;
      for (size_t v = 0; v < vocabulary; ++v) sum += std::exp(static_cast<double>(row[v]));
      EXPECT_NEAR(log_probs[s].values(t), row[sequences[s].ids(t + 1)] - std::log(sum), 1e-4);
    }
  }
  const auto rewards = OnEveryRank(sequences_of("llama_critic_lora"),
                                   [](ScorerEngine& engine, ForwardCall call, const auto& part_of, auto* part) {
                                     call.set_model(1);
                                     return engine.Rewards(call, part_of, part);
                                   });
  const auto values = golden("llama_critic_lora", "values", float());
  for (int s = 0; s < kSequences; ++s) EXPECT_NEAR(rewards[s].values(0), values[s * kLength + kLength - 1], 1e-4);
}

TEST_P(ScorerEngineTest, RefusesARewardModelWithoutAScalarHead) {
  config_.mutable_reward()->mutable_source(1)->set_model(std::string(kTestdata) + "llama");
  RunEngineRanks(GetParam(), [&](const RankContext& context) {
    const absl::Status status = ScorerEngine::Load(ScoringModels(config_), context).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("score.weight"));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ScorerEngineTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace quartet

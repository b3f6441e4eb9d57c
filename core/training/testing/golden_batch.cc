#include "core/training/testing/golden_batch.h"

#include <fstream>

#include "core/rl/testing/token_arrays.h"

namespace quartet {

void SetGoldenOptimizer(const nlohmann::json& golden, TrainerConfig* trainer) {
  const nlohmann::json& adamw = golden["adamw"];
  trainer->set_adam_beta1(adamw["beta1"]);
  trainer->set_adam_beta2(adamw["beta2"]);
  trainer->set_adam_eps(adamw["eps"]);
  trainer->set_weight_decay(adamw["weight_decay"]);
  trainer->set_max_norm(golden["max_norm"]);
}

std::vector<TrainingSequence> GoldenPairs(const nlohmann::json& golden, size_t step, bool has_margin) {
  const size_t pairs = golden["pairs_of_a_step"];
  std::vector<TrainingSequence> batch;
  for (size_t i = step * pairs; i < (step + 1) * pairs; ++i) {
    const auto& pair = golden["pairs"][i];
    for (const char* key : {"chosen_ids", "rejected_ids"}) {
      TrainingSequence& sequence = batch.emplace_back();
      sequence.mutable_tokens()->set_index(batch.size());
      for (int id : pair[key]) {
        sequence.mutable_tokens()->add_ids(id);
        sequence.mutable_tokens()->add_action_mask(false);  // which the loss of pairs does not look at
      }
      if (key[0] == 'r') continue;
      sequence.mutable_pair()->set_weight(1.0f / static_cast<float>(pairs));
      if (has_margin) sequence.mutable_pair()->set_margin(pair["margin"]);
    }
  }
  return batch;
}

GoldenBatch::GoldenBatch(const std::string& file, const std::vector<std::string_view>& arrays, int ranks,
                         int micro_batch)
    : golden(nlohmann::json::parse(std::ifstream(file))), ranks(ranks) {
  std::vector<BatchItem> batch;
  for (const auto& from : golden["sequences"]) {
    TrainingSequence& to = sequences.emplace_back();
    to.mutable_tokens()->set_index(sequences.size() * 10);
    for (const int id : from["ids"]) to.mutable_tokens()->add_ids(id);
    for (const bool action : from["action_mask"]) to.mutable_tokens()->add_action_mask(action);
    for (const std::string_view name : arrays) {
      for (const double x : from[std::string(name)]) MutableArray(name, &to).Add(static_cast<float>(x));
    }
    const int tokens = to.tokens().ids_size();
    batch.push_back({.tokens = tokens, .cost = static_cast<double>(tokens)});
  }
  split = SplitBatch(batch, ranks, {.sequences = micro_batch});
}

std::vector<TrainingSequence> GoldenBatch::Of(int rank) const {
  std::vector<TrainingSequence> mine;
  for (const size_t item : split.items[rank]) mine.push_back(sequences[item]);
  return mine;
}

std::map<size_t, std::vector<float>> GoldenBatch::Forward(TrainerEngine& engine, int rank, double temperature) const {
  std::vector<TokenSequence> tokens;
  for (const size_t item : split.items[rank]) tokens.push_back(sequences[item].tokens());
  ForwardCall call;
  SetMicroBatches(rank, &call);
  call.set_temperature(temperature);
  std::vector<TokenValues> replies;
  const absl::Status status = engine.Forward(call, tokens, &replies);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(replies.size(), tokens.size());
  std::map<size_t, std::vector<float>> values;
  for (size_t i = 0; i < replies.size(); ++i) {
    EXPECT_EQ(replies[i].index(), tokens[i].index());
    values[split.items[rank][i]].assign(replies[i].values().begin(), replies[i].values().end());
  }
  return values;
}

void GoldenBatch::ExpectForward(TrainerEngine& engine, int rank, double temperature,
                                const std::vector<std::vector<float>>& expected) const {
  for (const auto& [item, values] : Forward(engine, rank, temperature)) {
    EXPECT_THAT(values, ::testing::Pointwise(::testing::FloatNear(2e-4), expected[item]));
  }
}

}  // namespace quartet

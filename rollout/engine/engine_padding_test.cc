// Vocabularies with rows that stand for no token, against the same models without those rows.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/model/testing/padded_folder.h"
#include "core/tokenizer/testing/piece_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rollout/engine/engine.h"
#include "rollout/engine/testing/engine_harness.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kTokens = 151;

PieceTokenizer TokenizerOf(int32_t size) { return PieceTokenizer(std::vector<std::string>(size, "x")); }

SamplingParams ManySamples() {
  SamplingParams sampling = Sampling(1.3f, 0, 0.95f);
  sampling.set_n_samples(4);
  sampling.set_max_new_tokens(24);
  sampling.set_logprobs(3);
  sampling.set_prompt_logprobs(2);
  return sampling;
}

std::vector<std::string> Written(const Results& results) {
  std::vector<std::string> all;
  for (const auto& [key, sequence] : results) all.push_back(sequence.DebugString());
  return all;
}

// The token that the model draws most.
int32_t Favourite(const Results& results) {
  std::map<int32_t, int> times;
  for (const auto& [key, sequence] : results) {
    for (const int32_t id : AnswerOf(sequence)) ++times[id];
  }
  return std::ranges::max_element(times, {}, &std::pair<const int32_t, int>::second)->first;
}

bool HasNoToken(const Results& results) {
  return std::ranges::any_of(results, [](const auto& result) {
    return std::ranges::any_of(AnswerOf(result.second), [](int32_t id) { return id >= kTokens; });
  });
}

TEST(PaddedVocabulary, IsGeneratedFromAsIfItWereCutAtTheTokenizer) {
  const PieceTokenizer tokenizer = TokenizerOf(kTokens);
  for (const bool tied : {false, true}) {
    WideModel model(tied);
    for (GenerationTask& task : model.tasks) task.samples = 4;
    RolloutConfig cut = model.options;
    cut.set_dtype("bf16");  // a row of these products has the same bits whatever other rows there are
    LoadedEngine lone(cut);
    const Results expected = Generate(*lone.engine, ManySamples(), model.tasks);
    RolloutConfig padded = cut;
    padded.set_pretrain(PaddedFolder(model.folder, 10, Favourite(expected)));
    LoadedEngine open(padded);
    EXPECT_TRUE(HasNoToken(Generate(*open.engine, ManySamples(), model.tasks))) << "else this tests nothing";
    LoadedEngine engine(padded, &tokenizer);
    EXPECT_EQ(Written(Generate(*engine.engine, ManySamples(), model.tasks)), Written(expected));
    for (const int ranks : {2, 4}) {
      std::vector<std::string> of_cut;
      WithTensorParallelRanks(cut, ranks, [&](int rank, RolloutEngine& share) {
        const auto written = Written(Generate(share, ManySamples(), model.tasks));
        if (rank == 0) of_cut = written;
      });
      WithTensorParallelRanks(
          padded, ranks,
          [&](int, RolloutEngine& share) {
            EXPECT_EQ(Written(Generate(share, ManySamples(), model.tasks)), of_cut) << ranks << " ranks";
          },
          /*engines=*/1, &tokenizer);
    }
  }
}

TEST(PaddedVocabulary, ShardedOverRanksIsGeneratedFromAsIfItWereCut) {
  const PieceTokenizer tokenizer = TokenizerOf(kTokens);
  WideModel model(false);
  for (GenerationTask& task : model.tasks) task.samples = 4;
  RolloutConfig options = model.options;
  options.set_dtype("bf16");
  LoadedEngine lone(options);
  const Results expected = Generate(*lone.engine, ManySamples(), model.tasks);
  options.set_pretrain(PaddedFolder(model.folder, 10, Favourite(expected)));
  options.set_zero_stage(3);
  WithRanks(
      options, 2,
      [&](int, RolloutEngine& engine) {
        EXPECT_EQ(Written(GenerateInSteps(engine, ManySamples(), model.tasks, 40)), Written(expected));
      },
      &tokenizer);
}

TEST(PaddedVocabulary, TakesNoIdThatTheTokenizerDoesNotHave) {
  const PieceTokenizer tokenizer = TokenizerOf(kTokens);
  const WideModel model(false);
  RolloutConfig options = model.options;
  options.set_pretrain(PaddedFolder(model.folder, 10, 3));
  LoadedEngine engine(options, &tokenizer);
  EXPECT_EQ(engine->vocab_size(), kTokens);
  SamplingParams stops = Greedy(3);
  stops.add_stop_token_ids(kTokens);
  EXPECT_THAT(std::string(engine->Check(stops).message()), HasSubstr("stop_token_ids holds 151; allowed: 0 to 150"));
  SamplingParams biased = Greedy(3);
  (*biased.mutable_logit_bias())[kTokens + 9] = 1;
  EXPECT_THAT(std::string(engine->Check(biased).message()), HasSubstr("token 160; allowed: 0 to 150"));
  GenerationTask task = model.tasks[0];
  task.ids.back() = kTokens;
  EXPECT_THAT(std::string(engine->Check(Greedy(3), task).message()), HasSubstr("is 151; allowed: 0 to 150"));

  Ledger ledger;
  const auto store = MakeLocalStore();
  options.add_stop_token_ids(kTokens);
  EXPECT_THAT(
      std::string(RolloutEngine::Load(options, ContextOf(0, 1, store.get()), &ledger, &tokenizer).status().message()),
      HasSubstr("rollout.stop_token_ids holds 151; allowed: 0 to 150"));
  const PieceTokenizer large = TokenizerOf(kTokens + 11);
  EXPECT_THAT(
      std::string(RolloutEngine::Load(options, ContextOf(0, 1, store.get()), &ledger, &large).status().message()),
      HasSubstr("has 162 token ids, but vocab_size"));
}

TEST(PaddedVocabulary, SaysWhereNoTokenIsLeft) {
  const PieceTokenizer tokenizer = TokenizerOf(kTokens);
  const WideModel model(false);
  RolloutConfig options = model.options;
  options.set_pretrain(PaddedFolder(model.folder, 10, 3));
  LoadedEngine engine(options, &tokenizer);
  SamplingParams impossible = Sampling(1, 0, 1);
  impossible.set_min_tokens(1);
  for (int32_t id = 0; id < kTokens; ++id) impossible.add_stop_token_ids(id);
  Add(*engine.engine, impossible, {model.tasks[0]});
  const auto events = engine->Step();
  ASSERT_TRUE(events.ok()) << events.status();
  ASSERT_EQ(events->size(), 1u);
  ASSERT_TRUE(std::holds_alternative<absl::Status>(events->front().what));
}

}  // namespace
}  // namespace quartet

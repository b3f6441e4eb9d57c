// What an engine tells of tokens, against the log-probabilities that the trainer computes.

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/comm/process_group.h"
#include "core/model/decoder/vocabulary_head.h"
#include "core/zero/sharded/sharded_model.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "rollout/engine/engine.h"
#include "rollout/engine/testing/engine_harness.h"

namespace quartet {
namespace {

using nlohmann::json;

// What the trainer computes for `sequence`: one log-probability a generated token.
std::vector<float> TrainersLogProbs(ShardedModel& model, const GeneratedSequence& sequence, double temperature) {
  std::vector<int64_t> ids(sequence.tokens().ids().begin(), sequence.tokens().ids().end());
  const auto length = static_cast<int64_t>(ids.size());
  const int64_t prompt = length - sequence.log_probs_size();
  PackedSequences batch;
  batch.ids_T = at::from_blob(ids.data(), {length}, at::kLong).clone();
  batch.cu_seqlens = {0, length};
  std::vector<float> log_probs;
  model.Forward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
    const TokenLogProbs out = ChunkedLogProbs(hidden_TD.slice(0, prompt - 1, length - 1), head_VD,
                                              batch.ids_T.slice(0, prompt, length), temperature, {});
    const at::Tensor values = out.log_prob_T.contiguous();
    log_probs.assign(values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel());
  });
  return log_probs;
}

// `prompts_of`: the model whose golden cases' prompts are answered.
void ExpectTheTrainersLogProbs(const std::string& model, const std::string& prompts_of) {
  struct Allowed {
    std::string dtype;
    double mean;
    double most;
  };
  for (const auto& [dtype, mean, most] : {Allowed{"fp32", 2e-6, 2e-5}, Allowed{"bf16", 2e-6, 2e-5}}) {
    RolloutConfig options = OptionsFor(model);
    options.set_dtype(dtype);
    options.set_max_num_batched_tokens(50);
    LoadedEngine engine(options);
    const SamplingParams sampling = Sampling(0.7f, 20, 0.95f);
    const Results results = Generate(*engine.engine, sampling, TasksOf(GoldenOf(prompts_of), 2));

    ShardedModelOptions model_options;
    model_options.zero_stage = 0;
    model_options.compute_dtype = dtype == "fp32" ? at::kFloat : at::kBFloat16;
    Ledger ledger;
    const auto store = MakeLocalStore();
    const auto group = MakeProcessGroup(store.get(), ProcessGroupOptions());
    ASSERT_TRUE(group.ok());
    const auto judge = ShardedModel::Load(Folder(model), model_options, group->get(), &ledger);
    ASSERT_TRUE(judge.ok()) << judge.status();
    double sum = 0;
    int64_t count = 0;
    for (const auto& [key, sequence] : results) {
      const std::vector<float> expected = TrainersLogProbs(**judge, sequence, sampling.temperature());
      ASSERT_EQ(static_cast<int>(expected.size()), sequence.log_probs_size());
      for (size_t t = 0; t < expected.size(); ++t) {
        const double difference = std::abs(sequence.log_probs(static_cast<int>(t)) - expected[t]);
        EXPECT_LE(difference, most) << model << " " << dtype;
        sum += difference;
        ++count;
        EXPECT_GE(sequence.sampled_log_probs(static_cast<int>(t)), sequence.log_probs(static_cast<int>(t)) - 1e-6);
      }
    }
    EXPECT_LE(sum / static_cast<double>(count), mean) << model << " " << dtype;
  }
}

TEST(RolloutEngine, ItsLogProbsAreTheTrainers) {
  for (const std::string model : {"llama_tied_llama3_rope", "qwen2"}) ExpectTheTrainersLogProbs(model, model);
}

// Adapters of ranks 8, 1, 16 and 3, which are added in the engine as in the trainer.
TEST(RolloutEngine, ItsLogProbsWithAdaptersAreTheTrainers) {
  for (const std::string base : {"llama", "llama_biases", "qwen3", "olmo2"}) {
    ExpectTheTrainersLogProbs(base + "_lora", base);
  }
}

TEST(RolloutEngine, TellsTheLikeliestTokens) {
  const json golden = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama"));
  SamplingParams sampling = Greedy(golden["max_new_tokens"]);
  sampling.set_logprobs(3);
  const Results results = Generate(*engine.engine, sampling, TasksOf(golden));
  ExpectGolden(golden, results);
  for (const auto& [key, sequence] : results) {
    const std::vector<int32_t> answer = AnswerOf(sequence);
    ASSERT_EQ(sequence.alternatives_size(), static_cast<int>(answer.size()));
    for (int t = 0; t < sequence.alternatives_size(); ++t) {
      const TokenAlternatives& alternatives = sequence.alternatives(t);
      ASSERT_EQ(alternatives.ids_size(), 3);
      EXPECT_EQ(alternatives.ids(0), answer[t]);
      EXPECT_EQ(alternatives.log_probs(0), sequence.log_probs(t));
      EXPECT_GE(alternatives.log_probs(0), alternatives.log_probs(1));
      EXPECT_GE(alternatives.log_probs(1), alternatives.log_probs(2));
    }
  }
}

// What the trainer computes for the tokens of the prompt of `sequence`, the first one left out.
std::vector<float> TrainersPromptLogProbs(ShardedModel& model, const GeneratedSequence& sequence, double temperature) {
  GeneratedSequence prompt;
  const int length = sequence.tokens().ids_size() - sequence.log_probs_size();
  for (int i = 0; i < length; ++i) prompt.mutable_tokens()->add_ids(sequence.tokens().ids(i));
  for (int i = 1; i < length; ++i) prompt.add_log_probs(0);
  return TrainersLogProbs(model, prompt, temperature);
}

TEST(RolloutEngine, TellsOfAPromptsTokensWhatTheTrainerComputes) {
  const json golden = GoldenOf("llama");
  const auto store = MakeLocalStore();
  Ledger ledger;
  const auto group = MakeProcessGroup(store.get(), ProcessGroupOptions());
  ASSERT_TRUE(group.ok()) << group.status();
  ShardedModelOptions model_options;
  model_options.compute_dtype = at::kFloat;
  const auto model = ShardedModel::Load(Folder("llama"), model_options, group->get(), &ledger);
  ASSERT_TRUE(model.ok()) << model.status();

  // Whole prompts; in chunks, logits of few rows at a time; with so little cache that sequences are preempted.
  for (int way = 0; way < 3; ++way) {
    RolloutConfig options = OptionsFor("llama");
    if (way > 0) options.set_max_num_batched_tokens(7);
    if (way > 0) options.set_max_num_seqs(3);
    if (way == 2) options.set_kv_cache_bytes(CacheBytes("llama", "fp32", 11));
    LoadedEngine engine(options);
    for (const float temperature : {0.0f, 0.7f}) {
      for (const int32_t new_tokens : {0, 1, 40}) {
        SamplingParams sampling = Sampling(temperature, 0, 0.9f);
        sampling.set_max_new_tokens(new_tokens);
        sampling.set_ignore_eos(true);
        sampling.set_n_samples(3);
        sampling.set_prompt_logprobs(2);
        // The same prompts again and again: what the cache holds of them must not be used.
        const Results results = Generate(*engine.engine, sampling, TasksOf(golden, 3));
        EXPECT_EQ(results.size(), 3 * golden["cases"].size());
        for (const auto& [key, sequence] : results) {
          EXPECT_EQ(sequence.log_probs_size(), new_tokens);
          EXPECT_EQ(sequence.finish_reason(), GeneratedSequence::LENGTH);
          const std::vector<int32_t> prompt = golden["cases"][key.first]["prompt"];
          const std::vector<float> expected =
              TrainersPromptLogProbs(**model, sequence, temperature == 0 ? 1 : temperature);
          ASSERT_EQ(expected.size(), prompt.size() - 1);
          ASSERT_EQ(sequence.prompt_log_probs_size(), static_cast<int>(expected.size()));
          ASSERT_EQ(sequence.prompt_alternatives_size(), static_cast<int>(expected.size()));
          for (size_t t = 0; t < expected.size(); ++t) {
            EXPECT_NEAR(sequence.prompt_log_probs(static_cast<int>(t)), expected[t], 2e-5);
            const TokenAlternatives& likeliest = sequence.prompt_alternatives(static_cast<int>(t));
            ASSERT_EQ(likeliest.ids_size(), 2);
            EXPECT_GE(likeliest.log_probs(0), likeliest.log_probs(1));
            EXPECT_GE(likeliest.log_probs(0), sequence.prompt_log_probs(static_cast<int>(t)));
            for (int i = 0; i < 2; ++i) {
              if (likeliest.ids(i) != prompt[t + 1]) continue;
              EXPECT_EQ(likeliest.log_probs(i), sequence.prompt_log_probs(static_cast<int>(t)));
            }
          }
        }
      }
    }
    if (way == 2) {
      EXPECT_GT(engine->stats().preemptions(), 0);
    }
    EXPECT_GT(engine->stats().cached_tokens(), 0) << "samples share their prompt";
  }
}

TEST(RolloutEngine, TellsOfAPromptWithTheFirstTokenThatItStreams) {
  LoadedEngine engine(OptionsFor("llama"));
  SamplingParams sampling = Greedy(3);
  sampling.set_prompt_logprobs(1);
  std::vector<GenerationTask> tasks = TasksOf(GoldenOf("llama"), 2);
  for (GenerationTask& task : tasks) task.stream_tokens = true;
  Add(*engine.engine, sampling, tasks);
  std::map<std::pair<uint64_t, int32_t>, std::vector<GeneratedTokens>> streamed;
  size_t ended = 0;
  while (!engine->idle()) {
    const auto events = engine->Step();
    ASSERT_TRUE(events.ok()) << events.status();
    for (const EngineEvent& event : *events) {
      if (const auto* tokens = std::get_if<GeneratedTokens>(&event.what)) {
        streamed[{tokens->prompt_index(), tokens->sample()}].push_back(*tokens);
        continue;
      }
      const auto& sequence = std::get<GeneratedSequence>(event.what);
      const std::vector<GeneratedTokens>& tokens = streamed.at({sequence.prompt_index(), sequence.sample()});
      ++ended;
      ASSERT_EQ(sequence.prompt_log_probs_size() + 1, static_cast<int>(tasks[sequence.prompt_index()].ids.size()));
      EXPECT_TRUE(std::equal(sequence.prompt_log_probs().begin(), sequence.prompt_log_probs().end(),
                             tokens[0].prompt_log_probs().begin(), tokens[0].prompt_log_probs().end()));
      ASSERT_EQ(tokens[0].prompt_alternatives_size(), sequence.prompt_alternatives_size());
      for (int t = 0; t < sequence.prompt_alternatives_size(); ++t) {
        EXPECT_EQ(tokens[0].prompt_alternatives(t).SerializeAsString(),
                  sequence.prompt_alternatives(t).SerializeAsString());
      }
      for (size_t i = 1; i < tokens.size(); ++i) EXPECT_EQ(tokens[i].prompt_log_probs_size(), 0);
    }
  }
  EXPECT_EQ(ended, 2 * tasks.size());
}

TEST(RolloutEngine, TellsNothingOfPromptsThatNobodyAskedFor) {
  const json golden = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama"));
  for (const auto& [key, sequence] : Generate(*engine.engine, Greedy(3), TasksOf(golden))) {
    EXPECT_EQ(sequence.prompt_log_probs_size(), 0);
  }
  SamplingParams sampling = Greedy(0);
  EXPECT_EQ(engine->Check(sampling).code(), absl::StatusCode::kInvalidArgument);
  sampling.set_prompt_logprobs(0);
  EXPECT_TRUE(engine->Check(sampling).ok());
  // A prompt of one token has nothing to be told of; without alternatives there are none.
  GenerationTask one;
  one.ids = {5};
  GenerationTask two;
  two.prompt_index = 1;
  two.ids = {5, 6};
  const Results results = Generate(*engine.engine, sampling, {one, two});
  EXPECT_EQ(results.at({0, 0}).prompt_log_probs_size(), 0);
  EXPECT_EQ(results.at({0, 0}).finish_reason(), GeneratedSequence::LENGTH);
  EXPECT_EQ(results.at({1, 0}).prompt_log_probs_size(), 1);
  EXPECT_EQ(results.at({1, 0}).prompt_alternatives_size(), 0);
  sampling.set_prompt_logprobs(21);
  EXPECT_EQ(engine->Check(sampling).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quartet

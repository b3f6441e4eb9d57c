#include "rollout/engine/testing/engine_harness.h"

#include <algorithm>
#include <fstream>
#include <thread>
#include <variant>

#include "core/kernels/cpu/attention/paged_attention_kernel.h"
#include "core/model/initialize.h"
#include "core/model/model_config.h"
#include "core/safetensors/reader.h"
#include "gtest/gtest.h"

namespace quartet {

using nlohmann::json;

json Golden() {
  std::ifstream file("rollout/engine/testdata/generate.json");
  return json::parse(file);
}

json GoldenOf(const std::string& model) {
  for (const json& golden : Golden()) {
    if (golden["model"] == model) return golden;
  }
  ADD_FAILURE() << "no golden cases of " << model;
  return {};
}

std::string Folder(const std::string& model) { return "core/model/testdata/" + model; }

RolloutConfig OptionsFor(const std::string& model) {
  RolloutConfig options;
  options.set_pretrain(Folder(model));
  options.set_dtype("fp32");
  options.set_max_model_len(256);
  return options;
}

int64_t CacheBytes(const std::string& model, const std::string& dtype, int64_t blocks) {
  const auto config = ReadModelConfig(Folder(model));
  const PagedCacheLayout layout{16, config->num_key_value_heads, config->head_dim};
  return blocks * config->num_hidden_layers * layout.block_numel() * (dtype == "fp32" ? 4 : 2);
}

RankContext ContextOf(int rank, int ranks, KeyValueStore* store) {
  RankContext context;
  context.service = "rollout";
  context.rank = context.local_rank = rank;
  context.world_size = context.local_world_size = ranks;
  context.host = "127.0.0.1";
  context.device = "cpu";
  context.collective_timeout = absl::Seconds(60);
  context.store = store;
  return context;
}

SamplingParams Greedy(int32_t max_new_tokens) {
  SamplingParams sampling;
  sampling.set_temperature(0);
  sampling.set_top_p(1);
  sampling.set_max_new_tokens(max_new_tokens);
  sampling.set_n_samples(1);
  return sampling;
}

SamplingParams Sampling(float temperature, int32_t top_k, float top_p) {
  SamplingParams sampling = Greedy(40);
  sampling.set_temperature(temperature);
  sampling.set_top_k(top_k);
  sampling.set_top_p(top_p);
  sampling.set_seed(17);
  return sampling;
}

std::vector<GenerationTask> TasksOf(const json& golden, int32_t samples) {
  std::vector<GenerationTask> tasks;
  for (const json& c : golden["cases"]) {
    GenerationTask& task = tasks.emplace_back();
    task.prompt_index = tasks.size() - 1;
    task.ids = c["prompt"].get<std::vector<int32_t>>();
    task.samples = samples;
  }
  return tasks;
}

void Add(RolloutEngine& engine, const SamplingParams& sampling, const std::vector<GenerationTask>& tasks,
         uint64_t call) {
  const absl::Status params = engine.Check(sampling);
  EXPECT_TRUE(params.ok()) << params;
  const auto shared = std::make_shared<const SamplingParams>(sampling);
  for (GenerationTask task : tasks) {
    const absl::Status status = engine.Check(sampling, task);
    EXPECT_TRUE(status.ok()) << status;
    task.call = call;
    task.sampling = shared;
    engine.Add(task);
  }
}

void Step(RolloutEngine& engine, std::map<uint64_t, Results>* results) {
  const auto events = engine.Step();
  ASSERT_TRUE(events.ok()) << events.status();
  for (const EngineEvent& event : *events) {
    const auto* sequence = std::get_if<GeneratedSequence>(&event.what);
    ASSERT_NE(sequence, nullptr);
    const auto key = std::pair(sequence->prompt_index(), sequence->sample());
    EXPECT_TRUE((*results)[event.call].emplace(key, *sequence).second) << "a sequence came twice";
  }
}

Results Generate(RolloutEngine& engine, const SamplingParams& sampling, const std::vector<GenerationTask>& tasks) {
  std::map<uint64_t, Results> results;
  Add(engine, sampling, tasks);
  while (!engine.idle()) Step(engine, &results);
  EXPECT_EQ(engine.stats().blocks_in_use(), 0);
  return results[1];
}

std::vector<int32_t> AnswerOf(const GeneratedSequence& sequence) {
  std::vector<int32_t> answer;
  for (int i = 0; i < sequence.tokens().ids_size(); ++i) {
    if (sequence.tokens().action_mask(i)) answer.push_back(sequence.tokens().ids(i));
  }
  return answer;
}

void ExpectGolden(const json& golden, const Results& results) {
  ASSERT_EQ(results.size(), golden["cases"].size());
  for (size_t i = 0; i < results.size(); ++i) {
    const json& expected = golden["cases"][i];
    const GeneratedSequence& sequence = results.at({i, 0});
    const std::vector<int32_t> prompt = expected["prompt"];
    ASSERT_TRUE(std::equal(prompt.begin(), prompt.end(), sequence.tokens().ids().begin()));
    EXPECT_EQ(AnswerOf(sequence), expected["answer"].get<std::vector<int32_t>>()) << "prompt " << i;
    ASSERT_EQ(sequence.log_probs_size(), static_cast<int>(expected["log_probs"].size()));
    for (int t = 0; t < sequence.log_probs_size(); ++t) {
      EXPECT_NEAR(sequence.log_probs(t), expected["log_probs"][t].get<float>(), 2e-5);
      EXPECT_EQ(sequence.policy_versions(t), 0u);
    }
    const bool to_the_end = sequence.log_probs_size() == golden["max_new_tokens"];
    EXPECT_EQ(sequence.finish_reason(), to_the_end ? GeneratedSequence::LENGTH : GeneratedSequence::STOP);
  }
}

void WithRanks(const RolloutConfig& options, int ranks, const std::function<void(int, RolloutEngine&)>& body,
               const Tokenizer* tokenizer) {
  const auto store = MakeLocalStore();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Ledger ledger;
      auto engine = RolloutEngine::Load(options, ContextOf(rank, ranks, store.get()), &ledger, tokenizer);
      ASSERT_TRUE(engine.ok()) << engine.status();
      body(rank, **engine);
      EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void WithTwoShardedRanks(RolloutConfig options, const std::function<void(int, RolloutEngine&)>& body) {
  options.set_zero_stage(3);
  WithRanks(options, 2, body);
}

void WithTensorParallelRanks(RolloutConfig options, int ranks, const std::function<void(int, RolloutEngine&)>& body,
                             int engines, const Tokenizer* tokenizer) {
  options.set_tensor_parallel_size(ranks);
  WithRanks(options, engines * ranks, body, tokenizer);
}

Results GenerateInSteps(RolloutEngine& engine, const SamplingParams& sampling, const std::vector<GenerationTask>& tasks,
                        int64_t steps) {
  std::map<uint64_t, Results> results;
  Add(engine, sampling, tasks);
  for (int64_t i = 0; i < steps; ++i) Step(engine, &results);
  EXPECT_TRUE(engine.idle());
  return results[1];
}

void Fill(const WeightStaging& staging, const RolloutEngine& engine, const std::string& model) {
  const auto reader = CheckpointReader::Open(Folder(model));
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const StagedRange& range : staging.ranges()) {
    for (int64_t row = 0; row < range.elements.rows; ++row) {
      const absl::Status status = (*reader)->ReadRange(
          engine.tensors()[range.tensor].name, range.elements.begin + row * range.elements.stride, range.elements.count,
          static_cast<char*>(range.data) + row * range.elements.count * DtypeSize(engine.resident_dtype()));
      ASSERT_TRUE(status.ok()) << status;
    }
  }
}

void FillWithPattern(WeightStaging& staging, int64_t pattern) {
  for (const StagedRange& range : staging.ranges()) {
    auto* elements = static_cast<uint16_t*>(range.data);
    for (int64_t i = 0; i < range.elements.numel(); ++i) {
      const int64_t place = range.elements.begin + i;
      elements[i] =
          static_cast<uint16_t>(0x3C00 + (place * pattern + range.tensor * 31) % 0x200 + place % 3 / 2 * 0x8000);
    }
  }
}

WideModel::WideModel(bool tied, int64_t vocab_size) {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = vocab_size;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 16;
  config.max_position_embeddings = 512;
  config.tie_word_embeddings = tied;
  config.block.qkv_bias = config.block.o_bias = config.block.mlp_bias = !tied;
  config.initializer_range = 0.15;
  folder = testing::TempDir() + "/engine_test_wide_" + (tied ? "tied" : "untied") + std::to_string(vocab_size);
  const absl::Status written = WriteRandomModel(config, HeadKind::kVocabulary, 5, Dtype::kF32, folder);
  EXPECT_TRUE(written.ok()) << written;
  options.set_pretrain(folder);
  options.set_dtype("fp32");
  options.set_max_model_len(256);
  for (int32_t prompt = 0; prompt < 6; ++prompt) {
    GenerationTask& task = tasks.emplace_back();
    task.prompt_index = prompt;
    for (int32_t i = 0; i < 5 + 17 * prompt; ++i) task.ids.push_back((i * i + 31 * prompt) % 151);
  }
}

}  // namespace quartet

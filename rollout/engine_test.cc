// Against transformers' greedy generation (tools/golden/make_rollout_golden.py) and the trainer's own
// log-probabilities.

#include "rollout/engine.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/comm/local_store.h"
#include "core/comm/process_group.h"
#include "core/model/bf16_gemm.h"
#include "core/model/initialize.h"
#include "core/model/paged_attention.h"
#include "core/model/vocabulary_head.h"
#include "core/safetensors/reader.h"
#include "core/zero/sharded_model.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace quartet {
namespace {

using nlohmann::json;
using Results = std::map<std::pair<uint64_t, int32_t>, GeneratedSequence>;

json Golden() {
  std::ifstream file("rollout/testdata/generate.json");
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

RolloutEngineOptions OptionsFor(const std::string& model) {
  RolloutEngineOptions options;
  options.model = Folder(model);
  options.dtype = "fp32";
  options.max_model_len = 256;
  return options;
}

// The bytes of `blocks` blocks of cache.
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

// An engine of one rank with what it needs.
struct LoadedEngine {
  explicit LoadedEngine(const RolloutEngineOptions& options) : store(MakeLocalStore()) {
    auto loaded = RolloutEngine::Load(options, ContextOf(0, 1, store.get()), &ledger);
    if (!loaded.ok()) throw std::runtime_error(loaded.status().ToString());
    engine = *std::move(loaded);
  }
  RolloutEngine* operator->() { return engine.get(); }

  Ledger ledger;
  std::unique_ptr<KeyValueStore> store;
  std::unique_ptr<RolloutEngine> engine;
};

SamplingParams Greedy(int32_t max_new_tokens) {
  SamplingParams sampling;
  sampling.set_temperature(0);
  sampling.set_top_p(1);
  sampling.set_max_new_tokens(max_new_tokens);
  sampling.set_n_samples(1);
  return sampling;
}

std::vector<GenerationTask> TasksOf(const json& golden, int32_t samples = 1) {
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
         uint64_t call = 1) {
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

// One step; what ended goes to `results`, by call.
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
  EXPECT_EQ(engine.stats().blocks_in_use, 0);
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

// Runs `body` as each of `ranks` ranks that share an engine.
void WithRanks(const RolloutEngineOptions& options, int ranks, const std::function<void(int, RolloutEngine&)>& body) {
  const auto store = MakeLocalStore();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Ledger ledger;
      auto engine = RolloutEngine::Load(options, ContextOf(rank, ranks, store.get()), &ledger);
      ASSERT_TRUE(engine.ok()) << engine.status();
      body(rank, **engine);
      EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void WithTwoShardedRanks(RolloutEngineOptions options, const std::function<void(int, RolloutEngine&)>& body) {
  options.zero_stage = 3;
  WithRanks(options, 2, body);
}

// `engines` engines of `ranks` ranks each.
void WithTensorParallelRanks(RolloutEngineOptions options, int ranks,
                             const std::function<void(int, RolloutEngine&)>& body, int engines = 1) {
  options.tensor_parallel_size = ranks;
  WithRanks(options, engines * ranks, body);
}

// As many steps for a rank whatever it has to do.
Results GenerateInSteps(RolloutEngine& engine, const SamplingParams& sampling, const std::vector<GenerationTask>& tasks,
                        int64_t steps) {
  std::map<uint64_t, Results> results;
  Add(engine, sampling, tasks);
  for (int64_t i = 0; i < steps; ++i) Step(engine, &results);
  EXPECT_TRUE(engine.idle());
  return results[1];
}

TEST(RolloutEngine, GeneratesGreedilyWhatTransformersGenerates) {
  for (const json& golden : Golden()) {
    if (golden["model"] == "llama updated to mistral") continue;
    SCOPED_TRACE(golden["model"].get<std::string>());
    LoadedEngine engine(OptionsFor(golden["model"]));
    ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
    EXPECT_EQ(engine->stats().preemptions, 0);
  }
}

TEST(RolloutEngine, GeneratesTheSameWithAnyBatchSizeAndChunkedPrompts) {
  const json golden = GoldenOf("llama");
  for (const auto& [seqs, tokens, block_size] :
       std::vector<std::array<int64_t, 3>>{{1, 2048, 16}, {3, 2048, 16}, {64, 7, 16}, {64, 1, 32}, {5, 33, 48}}) {
    RolloutEngineOptions options = OptionsFor("llama");
    options.max_num_seqs = seqs;
    options.max_num_batched_tokens = tokens;
    options.block_size = block_size;
    LoadedEngine engine(options);
    ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
  }
}

TEST(RolloutEngine, GeneratesTheSameWhenItsCacheIsTooSmallForAll) {
  for (const std::string model : {"llama", "qwen3"}) {
    const json golden = GoldenOf(model);
    RolloutEngineOptions options = OptionsFor(model);
    options.kv_cache_bytes = CacheBytes(model, "fp32", 13);
    LoadedEngine engine(options);
    ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
    EXPECT_GT(engine->stats().preemptions, 0);
  }
}

TEST(RolloutEngine, ShardedOverTwoRanksGeneratesTheSame) {
  const json golden = GoldenOf("qwen2");
  std::mutex mutex;
  Results joined;
  WithTwoShardedRanks(OptionsFor("qwen2"), [&](int rank, RolloutEngine& engine) {
    std::vector<GenerationTask> mine;
    for (GenerationTask& task : TasksOf(golden)) {
      if (task.prompt_index % 4 == 0 ? rank == 0 : rank == 1) mine.push_back(std::move(task));
    }
    const int64_t most = golden["max_new_tokens"];
    Results results = GenerateInSteps(engine, Greedy(golden["max_new_tokens"]), mine, most + 2);
    const std::lock_guard lock(mutex);
    joined.merge(results);
  });
  ExpectGolden(golden, joined);
}

TEST(RolloutEngine, ARankWithoutPromptsKeepsStepWithTheOthers) {
  const json golden = GoldenOf("llama");
  WithTwoShardedRanks(OptionsFor("llama"), [&](int rank, RolloutEngine& engine) {
    const std::vector<GenerationTask> tasks = rank == 1 ? TasksOf(golden) : std::vector<GenerationTask>();
    const int64_t most = golden["max_new_tokens"];
    const Results results = GenerateInSteps(engine, Greedy(golden["max_new_tokens"]), tasks, most + 2);
    if (rank == 1) ExpectGolden(golden, results);
  });
}

SamplingParams Sampling(float temperature, int32_t top_k, float top_p) {
  SamplingParams sampling = Greedy(40);
  sampling.set_temperature(temperature);
  sampling.set_top_k(top_k);
  sampling.set_top_p(top_p);
  sampling.set_seed(17);
  return sampling;
}

// What the trainer computes for `sequence`: one log-probability a generated token.
std::vector<float> TrainersLogProbs(ShardedModel& model, const GeneratedSequence& sequence, double temperature) {
  std::vector<int64_t> ids(sequence.tokens().ids().begin(), sequence.tokens().ids().end());
  const auto length = static_cast<int64_t>(ids.size());
  const int64_t prompt = length - sequence.log_probs_size();
  PackedSequences batch;
  batch.ids_T = at::from_blob(ids.data(), {length}, at::kLong).clone();
  batch.starts = {0, length};
  std::vector<float> log_probs;
  model.Forward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
    const TokenLogProbs out =
        ChunkedLogProbs(hidden_TD.slice(0, prompt - 1, length - 1), head_VD, batch.ids_T.slice(0, prompt, length),
                        temperature, /*with_entropy=*/false);
    const at::Tensor values = out.log_prob_T.contiguous();
    log_probs.assign(values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel());
  });
  return log_probs;
}

TEST(RolloutEngine, ItsLogProbsAreTheTrainers) {
  struct Allowed {
    std::string dtype;
    double mean;
    double most;
  };
  // In bf16, LibTorch's product of one row and of many may be summed in another order; ours is not.
  const Allowed bf16 = HasBf16Gemm() ? Allowed{"bf16", 2e-6, 2e-5} : Allowed{"bf16", 0.02, 0.3};
  for (const auto& [dtype, mean, most] : {Allowed{"fp32", 2e-6, 2e-5}, bf16}) {
    for (const std::string model : {"llama_tied_llama3_rope", "qwen2"}) {
      RolloutEngineOptions options = OptionsFor(model);
      options.dtype = dtype;
      options.max_num_batched_tokens = 50;
      LoadedEngine engine(options);
      const SamplingParams sampling = Sampling(0.7f, 20, 0.95f);
      const Results results = Generate(*engine.engine, sampling, TasksOf(GoldenOf(model), 2));

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
}

TEST(RolloutEngine, ASampleDoesNotDependOnTheBatchAroundIt) {
  const json golden = GoldenOf("mistral");
  LoadedEngine engine(OptionsFor("mistral"));
  const SamplingParams sampling = Sampling(1.3f, 0, 1);
  const Results together = Generate(*engine.engine, sampling, TasksOf(golden, 3));
  ASSERT_EQ(together.size(), 24u);
  EXPECT_NE(AnswerOf(together.at({2, 0})), AnswerOf(together.at({2, 1})));
  for (GenerationTask task : TasksOf(golden)) {
    task.first_sample = 2;
    const Results alone = Generate(*engine.engine, sampling, {task});
    EXPECT_EQ(AnswerOf(alone.at({task.prompt_index, 2})), AnswerOf(together.at({task.prompt_index, 2})));
  }
  SamplingParams other_seed = sampling;
  other_seed.set_seed(18);
  EXPECT_NE(AnswerOf(Generate(*engine.engine, other_seed, TasksOf(golden)).at({2, 0})), AnswerOf(together.at({2, 0})));
}

// Ends a sequence where its generated ids are divisible by the length of the first stop string.
class DivisionWatcher : public StopWatcher {
 public:
  explicit DivisionWatcher(std::string stop) : stop_(std::move(stop)) {}
  const std::string* Read(int32_t token) override {
    return token % static_cast<int32_t>(stop_.size()) == 0 ? &stop_ : nullptr;
  }

 private:
  const std::string stop_;
};

TEST(RolloutEngine, EndsAtStopStringsButNotBeforeTheMinimumLength) {
  const json golden = GoldenOf("llama");
  RolloutEngineOptions options = OptionsFor("llama");
  options.watch_stop_strings = [](const std::vector<std::string>& stop) {
    return std::make_unique<DivisionWatcher>(stop[0]);
  };
  LoadedEngine engine(options);
  SamplingParams sampling = Greedy(golden["max_new_tokens"]);
  sampling.add_stop("seven..");
  for (const int32_t min_tokens : {0, 10}) {
    sampling.set_min_tokens(min_tokens);
    sampling.set_ignore_eos(true);
    int stopped = 0;
    for (const auto& [key, sequence] : Generate(*engine.engine, sampling, TasksOf(golden, 2))) {
      const std::vector<int32_t> answer = AnswerOf(sequence);
      const bool stops = answer.back() % 7 == 0 && static_cast<int32_t>(answer.size()) > min_tokens;
      EXPECT_EQ(sequence.finish_reason(), stops ? GeneratedSequence::STOP : GeneratedSequence::LENGTH);
      EXPECT_EQ(sequence.stop_string(), stops ? "seven.." : "");
      for (size_t i = min_tokens; i + 1 < answer.size(); ++i) EXPECT_NE(answer[i] % 7, 0);
      stopped += stops;
    }
    EXPECT_GT(stopped, 0);
  }
}

TEST(RolloutEngine, NothingEndsBeforeTheMinimumLength) {
  const json golden = GoldenOf("qwen2");
  LoadedEngine engine(OptionsFor("qwen2"));
  SamplingParams sampling = Greedy(golden["max_new_tokens"]);
  const size_t most = golden["max_new_tokens"];
  size_t shortest = most;
  for (const json& c : golden["cases"]) shortest = std::min(shortest, c["answer"].size());
  ASSERT_LT(shortest, most - 2);
  sampling.set_min_tokens(static_cast<int32_t>(shortest) + 2);
  for (const auto& [key, sequence] : Generate(*engine.engine, sampling, TasksOf(golden))) {
    const std::vector<int32_t> answer = AnswerOf(sequence);
    const std::vector<int32_t> free = golden["cases"][key.first]["answer"];
    EXPECT_GE(answer.size(), std::min(most, shortest + 2));
    // Up to where it would have ended, nothing has changed.
    const size_t same = std::min(free.size() - 1, shortest + 2);
    EXPECT_TRUE(std::equal(free.begin(), free.begin() + static_cast<int64_t>(same), answer.begin()));
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

// Fills staged ranges from another folder's file.
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
    RolloutEngineOptions options = OptionsFor("llama");
    if (way > 0) options.max_num_batched_tokens = 7;
    if (way > 0) options.max_num_seqs = 3;
    if (way == 2) options.kv_cache_bytes = CacheBytes("llama", "fp32", 11);
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
      EXPECT_GT(engine->stats().preemptions, 0);
    }
    EXPECT_GT(engine->stats().cached_tokens, 0) << "samples share their prompt";
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
  sampling.set_prompt_logprobs(20);
  GenerationTask huge;
  huge.ids.assign(13000, 5);
  EXPECT_NE(engine->Check(sampling, huge).ToString().find("make 273000 log-probabilities; allowed: at most 262144"),
            std::string::npos);
}

TEST(RolloutEngine, SequencesJoinAndLeaveTheBatchAtAnyTime) {
  const json golden = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama"));
  std::map<uint64_t, Results> results;
  uint64_t call = 0;
  for (const GenerationTask& task : TasksOf(golden)) {
    Add(*engine.engine, Greedy(golden["max_new_tokens"]), {task}, ++call);
    // One that nobody will want.
    Add(*engine.engine, Sampling(1, 0, 1), {task}, 100 + call);
    for (int step = 0; step < 3; ++step) Step(*engine.engine, &results);
    for (const GeneratedSequence& sequence : engine->Cancel(100 + call)) {
      EXPECT_EQ(sequence.finish_reason(), GeneratedSequence::ABORTED);
      EXPECT_EQ(sequence.log_probs_size(), sequence.policy_versions_size());
    }
  }
  while (!engine->idle()) Step(*engine.engine, &results);
  Results joined;
  for (auto& [id, of_call] : results) {
    if (id < 100) joined.merge(of_call);
  }
  ExpectGolden(golden, joined);
  EXPECT_EQ(engine->stats().blocks_in_use, 0);
  EXPECT_EQ(engine->stats().running, 0);
}

TEST(RolloutEngine, SamplesOfAPromptCostOnePrefill) {
  const json golden = GoldenOf("llama");
  const SamplingParams sampling = Sampling(1.1f, 0, 1);
  const auto prefill_of = [&](int32_t samples, Results* results) {
    LoadedEngine engine(OptionsFor("llama"));
    *results = Generate(*engine.engine, sampling, TasksOf(golden, samples));
    return engine->stats().prefill_tokens;
  };
  Results alone;
  Results eight;
  const int64_t one_prefill = prefill_of(1, &alone);
  EXPECT_LE(static_cast<double>(prefill_of(8, &eight)), 1.05 * static_cast<double>(one_prefill));
  for (const auto& [key, sequence] : alone) EXPECT_EQ(AnswerOf(eight.at(key)), AnswerOf(sequence));
  // The samples went on from the shared prompt each for itself.
  EXPECT_NE(AnswerOf(eight.at({2, 0})), AnswerOf(eight.at({2, 7})));
}

TEST(RolloutEngine, CountsThePlacesInBlocksThatHoldNoToken) {
  LoadedEngine engine(OptionsFor("llama"));
  GenerationTask task = TasksOf(GoldenOf("llama"))[0];
  task.ids.assign(10, 1);
  SamplingParams sampling = Greedy(9);  // the last token is never in the cache
  sampling.set_ignore_eos(true);
  Generate(*engine.engine, sampling, {task});
  const RolloutEngineStats stats = engine->stats();
  EXPECT_EQ(stats.steps, 9);
  EXPECT_EQ(stats.held_places, 7 * 16 + 2 * 32);  // of 10 to 16, then 17 and 18 tokens
  EXPECT_EQ(stats.empty_places, 6 + 5 + 4 + 3 + 2 + 1 + 0 + 15 + 14);
}

TEST(RolloutEngine, APromptThatTheCacheHoldsIsNotComputedAgain) {
  const json golden = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama"));
  ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
  const int64_t first = engine->stats().prefill_tokens;
  ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
  const RolloutEngineStats stats = engine->stats();
  EXPECT_GT(stats.cached_tokens, 0);
  EXPECT_EQ(stats.prefill_tokens, stats.admitted_tokens - stats.cached_tokens);
  EXPECT_LT(stats.prefill_tokens - first, first);
}

TEST(RolloutEngine, SequencesGoOnAcrossACommitAndSayWhichVersionMadeEachToken) {
  const json llama = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama"));
  SamplingParams sampling = Greedy(llama["max_new_tokens"]);
  sampling.set_ignore_eos(true);
  std::map<uint64_t, Results> results;
  Add(*engine.engine, sampling, TasksOf(llama));
  for (int step = 0; step < 5; ++step) Step(*engine.engine, &results);
  auto staging = engine->NewStaging();
  Fill(*staging, *engine.engine, "mistral");
  engine->Commit(std::move(staging), 3);
  while (!engine->idle()) Step(*engine.engine, &results);
  for (const auto& [key, sequence] : results[1]) {
    const std::vector<int32_t> answer = AnswerOf(sequence);
    const std::vector<int32_t> old = llama["cases"][key.first]["answer"];
    for (int t = 0; t < sequence.policy_versions_size(); ++t) {
      EXPECT_EQ(sequence.policy_versions(t), t < 5 ? 0u : 3u);
      EXPECT_TRUE(t >= std::min<int>(5, static_cast<int>(old.size())) || answer[t] == old[t]);
    }
  }
  // Nothing that the old weights computed is found.
  const json updated = GoldenOf("llama updated to mistral");
  const Results fresh = Generate(*engine.engine, Greedy(updated["max_new_tokens"]), TasksOf(updated));
  for (const auto& [key, sequence] : fresh) {
    EXPECT_EQ(AnswerOf(sequence), updated["cases"][key.first]["answer"].get<std::vector<int32_t>>());
  }
}

TEST(RolloutEngine, SleepsWithoutItsCacheAndThenGoesOnWithWhatItHadBegun) {
  const json golden = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama"));
  const int64_t cache = engine.ledger.current(MemoryCategory::kKvCache);
  EXPECT_GT(cache, 0);
  std::map<uint64_t, Results> results;
  Add(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden));
  for (int step = 0; step < 5; ++step) Step(*engine.engine, &results);
  engine->Sleep(/*release_weights=*/false);
  engine->Sleep(/*release_weights=*/false);
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kKvCache), 0);
  EXPECT_EQ(engine->stats().blocks_in_use, 0);
  ASSERT_TRUE(engine->Wake().ok());
  ASSERT_TRUE(engine->Wake().ok());
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kKvCache), cache);
  while (!engine->idle()) Step(*engine.engine, &results);
  ExpectGolden(golden, results[1]);
}

TEST(RolloutEngine, AnEngineThatCannotHaveItsMemoryAgainGoesOnSleeping) {
  LoadedEngine engine(OptionsFor("llama"));
  engine->Sleep(/*release_weights=*/false);
  engine.ledger.SetBudget(MemoryTier::kDevice, engine.ledger.total(MemoryTier::kDevice) + 1);
  EXPECT_EQ(engine->Wake().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kKvCache), 0);
  engine.ledger.SetBudget(MemoryTier::kDevice, 0);
  EXPECT_TRUE(engine->Wake().ok());
}

TEST(RolloutEngine, ReadsItsWeightsAgainAfterASleepThatReleasedThem) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    RolloutEngineOptions options = OptionsFor("llama");
    options.dtype = dtype;
    LoadedEngine engine(options);
    const json golden = GoldenOf("llama");
    const SamplingParams sampling = Greedy(golden["max_new_tokens"]);
    const Results before = Generate(*engine.engine, sampling, TasksOf(golden));
    const int64_t parameters = engine.ledger.current(MemoryCategory::kParameters);
    EXPECT_GT(parameters, 0);
    std::map<uint64_t, Results> results;
    Add(*engine.engine, sampling, TasksOf(golden));
    for (int step = 0; step < 5; ++step) Step(*engine.engine, &results);
    for (int twice = 0; twice < 2; ++twice) {
      engine->Sleep(/*release_weights=*/twice == 0);  // the second is without effect
      EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 0);
      EXPECT_EQ(engine.ledger.current(MemoryCategory::kKvCache), 0);
      EXPECT_FALSE(engine->has_weights());
    }
    ASSERT_TRUE(engine->Wake().ok());
    EXPECT_TRUE(engine->has_weights());
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), parameters);
    while (!engine->idle()) Step(*engine.engine, &results);
    const Results after = Generate(*engine.engine, sampling, TasksOf(golden));
    for (const auto& [key, sequence] : before) {
      EXPECT_EQ(AnswerOf(results[1].at(key)), AnswerOf(sequence));
      EXPECT_EQ(AnswerOf(after.at(key)), AnswerOf(sequence));
    }
    if (dtype == "fp32") ExpectGolden(golden, after);
  }
}

TEST(RolloutEngine, WeightsOfALaterVersionThatASleepReleasedComeBackByAnUpdateAlone) {
  const json updated = GoldenOf("llama updated to mistral");
  LoadedEngine engine(OptionsFor("llama"));
  const int64_t parameters = engine.ledger.current(MemoryCategory::kParameters);
  const auto update = [&] {
    auto staging = engine->NewStaging();
    Fill(*staging, *engine.engine, "mistral");
    engine->Commit(std::move(staging), 3);
    EXPECT_TRUE(engine->has_weights());
  };
  const auto expect_updated = [&] {
    const Results results = Generate(*engine.engine, Greedy(updated["max_new_tokens"]), TasksOf(updated));
    for (const auto& [key, sequence] : results) {
      EXPECT_EQ(AnswerOf(sequence), updated["cases"][key.first]["answer"].get<std::vector<int32_t>>());
    }
  };
  update();
  // Awake first.
  engine->Sleep(/*release_weights=*/false);
  engine->Sleep(/*release_weights=*/true);
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 0);
  ASSERT_TRUE(engine->Wake().ok());
  EXPECT_FALSE(engine->has_weights());
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 0);
  update();
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), parameters);
  expect_updated();
  // Updated while it sleeps.
  engine->Sleep(/*release_weights=*/true);
  update();
  ASSERT_TRUE(engine->Wake().ok());
  expect_updated();
}

TEST(RolloutEngine, ShardedRanksReleaseAndReadTheirShards) {
  const json golden = GoldenOf("llama");
  WithTwoShardedRanks(OptionsFor("llama"), [&](int rank, RolloutEngine& engine) {
    engine.Sleep(/*release_weights=*/true);
    ASSERT_TRUE(engine.Wake().ok());
    const int64_t most = golden["max_new_tokens"];
    const Results results = GenerateInSteps(engine, Greedy(golden["max_new_tokens"]),
                                            rank == 0 ? TasksOf(golden) : std::vector<GenerationTask>(), most + 2);
    if (rank == 0) ExpectGolden(golden, results);
  });
}

TEST(RolloutEngine, AnEngineThatCannotHaveItsWeightsAgainGoesOnSleepingWithoutThem) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "engine_test_vanishing";
  std::filesystem::remove_all(folder);
  std::filesystem::copy(Folder("llama"), folder, std::filesystem::copy_options::recursive);
  RolloutEngineOptions options = OptionsFor("llama");
  options.model = folder.string();
  LoadedEngine engine(options);
  const int64_t parameters = engine.ledger.current(MemoryCategory::kParameters);
  engine->Sleep(/*release_weights=*/true);
  const auto expect_asleep = [&] {
    EXPECT_FALSE(engine->has_weights());
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 0);
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kKvCache), 0);
  };
  // Too little for the weights; for the cache beside them.
  for (const int64_t room : {parameters - 1, parameters + 1}) {
    engine.ledger.SetBudget(MemoryTier::kDevice, engine.ledger.total(MemoryTier::kDevice) + room);
    EXPECT_EQ(engine->Wake().code(), absl::StatusCode::kResourceExhausted);
    expect_asleep();
  }
  engine.ledger.SetBudget(MemoryTier::kDevice, 0);
  std::filesystem::rename(folder / "model.safetensors", folder / "elsewhere");
  EXPECT_FALSE(engine->Wake().ok());
  expect_asleep();
  std::filesystem::rename(folder / "elsewhere", folder / "model.safetensors");
  EXPECT_TRUE(engine->Wake().ok());
  const json golden = GoldenOf("llama");
  ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
}

TEST(RolloutEngine, EndsAtStopTokensAndGoesOnBehindEndTokensWhenTold) {
  const json golden = GoldenOf("qwen2");
  LoadedEngine engine(OptionsFor("qwen2"));
  const std::vector<int32_t> answer = golden["cases"][0]["answer"];
  ASSERT_GT(answer.size(), 3u);
  SamplingParams sampling = Greedy(golden["max_new_tokens"]);
  sampling.add_stop_token_ids(answer[2]);
  const auto first = static_cast<size_t>(std::find(answer.begin(), answer.end(), answer[2]) - answer.begin());
  const Results stopped = Generate(*engine.engine, sampling, {TasksOf(golden)[0]});
  EXPECT_EQ(AnswerOf(stopped.at({0, 0})), std::vector<int32_t>(answer.begin(), answer.begin() + first + 1));
  EXPECT_EQ(stopped.at({0, 0}).finish_reason(), GeneratedSequence::STOP);

  sampling = Greedy(golden["max_new_tokens"]);
  sampling.set_ignore_eos(true);
  int went_on = 0;
  for (const auto& [key, sequence] : Generate(*engine.engine, sampling, TasksOf(golden))) {
    EXPECT_EQ(sequence.finish_reason(), GeneratedSequence::LENGTH);
    const std::vector<int32_t> ended = golden["cases"][key.first]["answer"];
    const std::vector<int32_t> whole = AnswerOf(sequence);
    EXPECT_TRUE(std::equal(ended.begin(), ended.end(), whole.begin()));
    went_on += whole.size() > ended.size();
  }
  EXPECT_GT(went_on, 0);
}

TEST(RolloutEngine, ACommittedVersionGeneratesAndStampsItsTokens) {
  const json llama = GoldenOf("llama");
  const json updated = GoldenOf("llama updated to mistral");
  LoadedEngine engine(OptionsFor("llama"));
  const int64_t parameters = engine.ledger.current(MemoryCategory::kParameters);
  auto staging = engine->NewStaging();
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 2 * parameters);
  Fill(*staging, *engine.engine, "mistral");
  // What is staged is not in use.
  ExpectGolden(llama, Generate(*engine.engine, Greedy(llama["max_new_tokens"]), TasksOf(llama)));
  engine->Commit(std::move(staging), 3);
  EXPECT_EQ(engine->version(), 3u);
  const Results results = Generate(*engine.engine, Greedy(updated["max_new_tokens"]), TasksOf(updated));
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(AnswerOf(results.at({i, 0})), updated["cases"][i]["answer"].get<std::vector<int32_t>>());
    for (const uint64_t version : results.at({i, 0}).policy_versions()) EXPECT_EQ(version, 3u);
  }
}

TEST(RolloutEngine, UpdatesAreStagedInReservedMemoryAndWhereTheVersionBeforeWasUntilASleepGivesThatBack) {
  const json updated = GoldenOf("llama updated to mistral");
  LoadedEngine engine(OptionsFor("llama"));
  const int64_t parameters = engine.ledger.current(MemoryCategory::kParameters);
  engine->ReserveStaging();
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 2 * parameters);
  std::vector<const void*> places;
  const auto update = [&](uint64_t version) {
    auto staging = engine->NewStaging();
    places.push_back(staging->ranges().front().data);
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 2 * parameters);
    Fill(*staging, *engine.engine, "mistral");
    engine->Commit(std::move(staging), version);
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 2 * parameters);
    for (const auto& [key, sequence] : Generate(*engine.engine, Greedy(updated["max_new_tokens"]), TasksOf(updated))) {
      EXPECT_EQ(AnswerOf(sequence), updated["cases"][key.first]["answer"].get<std::vector<int32_t>>());
    }
  };
  for (uint64_t version = 1; version <= 4; ++version) update(version);
  EXPECT_EQ(places[2], places[0]);
  EXPECT_EQ(places[3], places[1]);
  EXPECT_NE(places[1], places[0]);
  EXPECT_EQ(engine.ledger.peak(MemoryCategory::kParameters), 2 * parameters);

  engine->Sleep(/*release_weights=*/false);
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), parameters);
  ASSERT_TRUE(engine->Wake().ok());
  update(5);
}

// Magnitudes from 2^-7 to 2^-3, of either sign, that depend on `pattern` and an element's tensor and
// place alone.
void FillWithPattern(WeightStaging& staging, int64_t pattern = 7919) {
  for (const StagedRange& range : staging.ranges()) {
    auto* elements = static_cast<uint16_t*>(range.data);
    for (int64_t i = 0; i < range.elements.numel(); ++i) {
      const int64_t place = range.elements.begin + i;
      elements[i] =
          static_cast<uint16_t>(0x3C00 + (place * pattern + range.tensor * 31) % 0x200 + place % 3 / 2 * 0x8000);
    }
  }
}

// Whether they are put in the order of products while the present ones are in use or at the commit.
TEST(RolloutEngine, GeneratesTheSameHoweverItsWeightsLie) {
  for (const std::string model : {"llama_tied_llama3_rope", "qwen2"}) {
    RolloutEngineOptions options = OptionsFor(model);
    options.dtype = "bf16";
    LoadedEngine whole(options);
    options.zero_stage = 3;
    LoadedEngine sharded(options);
    const auto expect_the_same = [&] {
      const SamplingParams sampling = Sampling(0.7f, 20, 0.95f);
      const Results of_whole = Generate(*whole.engine, sampling, TasksOf(GoldenOf(model), 2));
      const Results of_sharded = Generate(*sharded.engine, sampling, TasksOf(GoldenOf(model), 2));
      for (const auto& [key, sequence] : of_sharded) {
        EXPECT_EQ(AnswerOf(of_whole.at(key)), AnswerOf(sequence));
        EXPECT_TRUE(
            std::equal(sequence.log_probs().begin(), sequence.log_probs().end(), of_whole.at(key).log_probs().begin()));
      }
    };
    expect_the_same();
    for (const bool prepares : {true, false}) {
      for (LoadedEngine* engine : {&whole, &sharded}) {
        auto staging = (*engine)->NewStaging();
        FillWithPattern(*staging, prepares ? 7919 : 6007);
        if (prepares) {
          staging->Prepare();
          if (engine == &whole) expect_the_same();  // what is staged is not in use
        }
        (*engine)->Commit(std::move(staging), prepares ? 1 : 2);
      }
      expect_the_same();
    }
  }
}

// A model that four ranks can divide, and prompts for it.
struct WideModel {
  explicit WideModel(bool tied, int64_t vocab_size = 151) {
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
    config.attention_bias = config.mlp_bias = !tied;
    config.initializer_range = 0.15;
    folder = testing::TempDir() + "/engine_test_wide_" + (tied ? "tied" : "untied") + std::to_string(vocab_size);
    const absl::Status written = WriteRandomModel(config, HeadKind::kVocabulary, 5, Dtype::kF32, folder);
    EXPECT_TRUE(written.ok()) << written;
    options.model = folder;
    options.dtype = "fp32";
    options.max_model_len = 256;
    for (int32_t prompt = 0; prompt < 6; ++prompt) {
      GenerationTask& task = tasks.emplace_back();
      task.prompt_index = prompt;
      for (int32_t i = 0; i < 5 + 17 * prompt; ++i) task.ids.push_back((i * i + 31 * prompt) % 151);
    }
  }
  std::string folder;
  RolloutEngineOptions options;
  std::vector<GenerationTask> tasks;
};

// Parts end anywhere in the panels of sixteen rows in which products read matrices.
TEST(RolloutEngine, ShardedRanksMakeTheBitsOfOneWithAllOfTheWeights) {
  for (const bool tied : {true, false}) {
    const WideModel model(tied, /*vocab_size=*/160);  // whole panels: embedding and head have the order, too
    RolloutEngineOptions options = model.options;
    options.dtype = "bf16";
    const SamplingParams sampling = Greedy(20);
    LoadedEngine whole(options);
    const Results loaded = Generate(*whole.engine, sampling, model.tasks);
    auto of_whole = whole->NewStaging();
    FillWithPattern(*of_whole);
    whole->Commit(std::move(of_whole), 1);
    const Results updated = Generate(*whole.engine, sampling, model.tasks);
    options.zero_stage = 3;
    for (const int ranks : {2, 3, 5}) {
      WithRanks(options, ranks, [&](int rank, RolloutEngine& engine) {
        const auto expect = [&](const Results& expected) {
          std::vector<GenerationTask> mine;
          for (const GenerationTask& task : model.tasks) {
            if (static_cast<int>(task.prompt_index) % ranks == rank) mine.push_back(task);
          }
          for (const auto& [key, sequence] : GenerateInSteps(engine, sampling, mine, 22)) {
            EXPECT_EQ(AnswerOf(sequence), AnswerOf(expected.at(key))) << ranks << " ranks, prompt " << key.first;
            EXPECT_TRUE(std::equal(sequence.log_probs().begin(), sequence.log_probs().end(),
                                   expected.at(key).log_probs().begin()))
                << ranks << " ranks, prompt " << key.first;
          }
        };
        expect(loaded);
        auto staging = engine.NewStaging();
        FillWithPattern(*staging);
        engine.Commit(std::move(staging), 1);
        expect(updated);
        engine.Sleep(/*release_weights=*/true);
        ASSERT_TRUE(engine.Wake().ok());
        auto again = engine.NewStaging();
        FillWithPattern(*again);
        again->Prepare();
        engine.Commit(std::move(again), 2);
        expect(updated);
      });
    }
  }
}

TEST(RolloutEngine, ShardedRanksCommitTheirShards) {
  const json updated = GoldenOf("llama updated to mistral");
  WithTwoShardedRanks(OptionsFor("llama"), [&](int rank, RolloutEngine& engine) {
    auto staging = engine.NewStaging();
    Fill(*staging, engine, "mistral");
    engine.Commit(std::move(staging), 1);
    const int64_t most = updated["max_new_tokens"];
    const Results results = GenerateInSteps(engine, Greedy(updated["max_new_tokens"]),
                                            rank == 0 ? TasksOf(updated) : std::vector<GenerationTask>(), most + 2);
    for (const auto& [key, sequence] : results) {
      EXPECT_EQ(AnswerOf(sequence), updated["cases"][key.first]["answer"].get<std::vector<int32_t>>());
    }
  });
}

TEST(TensorParallelEngine, GeneratesGreedilyWhatTransformersGenerates) {
  for (const json& golden : Golden()) {
    if (golden["model"] == "llama updated to mistral") continue;
    SCOPED_TRACE(golden["model"].get<std::string>());
    RolloutEngineOptions options = OptionsFor(golden["model"]);
    options.max_num_batched_tokens = 50;
    WithTensorParallelRanks(options, 2, [&](int, RolloutEngine& engine) {
      ExpectGolden(golden, Generate(engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
    });
  }
}

// What an engine answered, event by event.
void ExpectTheSame(const std::vector<EngineEvent>& events, const std::vector<EngineEvent>& expected, double allowed) {
  ASSERT_EQ(events.size(), expected.size());
  const auto expect_near = [&](const auto& values, const auto& others) {
    ASSERT_EQ(values.size(), others.size());
    for (int i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], others[i], allowed);
  };
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].call, expected[i].call);
    ASSERT_EQ(events[i].what.index(), expected[i].what.index());
    if (const auto* status = std::get_if<absl::Status>(&events[i].what)) {
      EXPECT_EQ(*status, std::get<absl::Status>(expected[i].what));
    } else if (const auto* tokens = std::get_if<GeneratedTokens>(&events[i].what)) {
      const auto& others = std::get<GeneratedTokens>(expected[i].what);
      EXPECT_EQ(tokens->prompt_index(), others.prompt_index());
      EXPECT_EQ(std::vector<int32_t>(tokens->ids().begin(), tokens->ids().end()),
                std::vector<int32_t>(others.ids().begin(), others.ids().end()));
    } else {
      const auto& sequence = std::get<GeneratedSequence>(events[i].what);
      const auto& other = std::get<GeneratedSequence>(expected[i].what);
      EXPECT_EQ(sequence.prompt_index(), other.prompt_index());
      EXPECT_EQ(sequence.sample(), other.sample());
      EXPECT_EQ(sequence.finish_reason(), other.finish_reason());
      ASSERT_EQ(AnswerOf(sequence), AnswerOf(other)) << "prompt " << sequence.prompt_index();
      expect_near(sequence.log_probs(), other.log_probs());
      expect_near(sequence.sampled_log_probs(), other.sampled_log_probs());
      expect_near(sequence.prompt_log_probs(), other.prompt_log_probs());
      ASSERT_EQ(sequence.alternatives_size(), other.alternatives_size());
      for (int t = 0; t < sequence.alternatives_size(); ++t) {
        EXPECT_EQ(std::vector<int32_t>(sequence.alternatives(t).ids().begin(), sequence.alternatives(t).ids().end()),
                  std::vector<int32_t>(other.alternatives(t).ids().begin(), other.alternatives(t).ids().end()));
        expect_near(sequence.alternatives(t).log_probs(), other.alternatives(t).log_probs());
      }
      EXPECT_TRUE(std::equal(sequence.policy_versions().begin(), sequence.policy_versions().end(),
                             other.policy_versions().begin(), other.policy_versions().end()));
    }
  }
}

// Everything that can happen to an engine, the same whichever rank it is.
std::vector<EngineEvent> LiveThrough(RolloutEngine& engine, const WideModel& model) {
  std::vector<EngineEvent> all;
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      auto events = engine.Step();
      ASSERT_TRUE(events.ok()) << events.status();
      for (EngineEvent& event : *events) all.push_back(std::move(event));
    }
  };
  const auto add = [&](uint64_t call, SamplingParams sampling, const std::vector<GenerationTask>& tasks,
                       bool stream = false) {
    std::vector<GenerationTask> mine = tasks;
    for (GenerationTask& task : mine) {
      task.samples = sampling.n_samples();
      task.stream_tokens = stream;
    }
    Add(engine, sampling, mine, call);
  };
  steps(1);  // nothing to do
  SamplingParams sampling = Sampling(0.9f, 0, 0.9f);
  sampling.set_n_samples(3);
  sampling.set_logprobs(2);
  add(1, sampling, model.tasks);
  add(2, Greedy(30), model.tasks, /*stream=*/true);
  steps(9);
  add(3, Greedy(50), {model.tasks[5]});
  steps(4);
  for (GeneratedSequence& sequence : engine.Cancel(2)) all.push_back({2, std::move(sequence)});
  steps(3);
  engine.Sleep(/*release_weights=*/true);
  EXPECT_TRUE(engine.Wake().ok());
  steps(5);
  auto staging = engine.NewStaging();
  for (const StagedRange& range : staging->ranges()) {
    // A function of the element's place in the whole tensor.
    for (int64_t i = 0; i < range.elements.numel(); ++i) {
      const int64_t place = NextPart(range.elements, i, 1).begin;
      static_cast<float*>(range.data)[i] = static_cast<float>((place * 7919 + range.tensor * 31) % 257 - 128) / 1024;
    }
  }
  engine.Commit(std::move(staging), 7);
  SamplingParams told = Greedy(20);
  told.set_prompt_logprobs(1);
  add(4, told, model.tasks);
  steps(200);
  EXPECT_TRUE(engine.idle());
  return all;
}

TEST(TensorParallelEngine, LivesThroughTheSameAsOneRank) {
  for (const bool tied : {false, true}) {
    const WideModel model(tied);
    RolloutEngineOptions options = model.options;
    options.max_num_batched_tokens = 60;
    options.max_num_seqs = 11;
    options.kv_cache_bytes = int64_t{3} * 30 * 2 * 4 * 16 * 16 * 4;  // 30 blocks
    LoadedEngine lone(options);
    const std::vector<EngineEvent> expected = LiveThrough(*lone.engine, model);
    EXPECT_GT(lone->stats().preemptions, 1);
    EXPECT_GT(lone->stats().cached_tokens, 0);
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", tied ? "tied" : "untied"));
      RolloutEngineOptions share = options;
      share.kv_cache_bytes /= ranks;
      WithTensorParallelRanks(share, ranks, [&](int, RolloutEngine& engine) {
        ExpectTheSame(LiveThrough(engine, model), expected, 1e-5);
        EXPECT_EQ(engine.stats().blocks, lone->stats().blocks);
        EXPECT_EQ(engine.stats().preemptions, lone->stats().preemptions);
        EXPECT_EQ(engine.stats().cached_tokens, lone->stats().cached_tokens);
        EXPECT_EQ(engine.version(), 7u);
      });
    }
  }
}

TEST(TensorParallelEngine, OneOfSeveralLivesThroughItsOwnInItsOwnTime) {
  const WideModel model(false);
  LoadedEngine lone(model.options);
  const std::vector<EngineEvent> expected = LiveThrough(*lone.engine, model);
  WithTensorParallelRanks(
      model.options, 2,
      [&](int rank, RolloutEngine& engine) {
        if (rank / 2 == 1) {
          ExpectTheSame(LiveThrough(engine, model), expected, 1e-5);
          const auto agreed = engine.AgreeOnStep(/*batches=*/10 + rank);
          ASSERT_TRUE(agreed.ok()) << agreed.status();
          EXPECT_EQ(agreed->batches, 12);  // those of ranks 2 and 3
          EXPECT_TRUE(agreed->idle);
        } else {
          const Results results = Generate(engine, Greedy(5), {model.tasks[3]});
          EXPECT_EQ(results.size(), 1u);
          EXPECT_EQ(engine.stats().steps, 5);
        }
      },
      /*engines=*/2);
}

TEST(RolloutEngine, RanksThatStepTogetherAgreeOnTheirNextStep) {
  const WideModel model(true);
  const auto agreement = [&](int zero_stage, int tensor_parallel_size) {
    RolloutEngineOptions options = model.options;
    options.zero_stage = zero_stage;
    options.tensor_parallel_size = tensor_parallel_size;
    std::vector<StepAgreement> agreed(2);
    WithRanks(options, 2, [&](int rank, RolloutEngine& engine) {
      if (rank == 1) Add(engine, Greedy(5), {model.tasks[0]});
      agreed[rank] = *engine.AgreeOnStep(7 - rank);
    });
    return agreed;
  };
  for (const StepAgreement& agreed : agreement(3, 1)) {
    EXPECT_EQ(agreed.batches, 6);
    EXPECT_FALSE(agreed.idle);
  }
  for (const StepAgreement& agreed : agreement(0, 2)) EXPECT_EQ(agreed.batches, 6);
  const std::vector<StepAgreement> alone = agreement(0, 1);
  EXPECT_EQ(alone[0].batches, 7);
  EXPECT_TRUE(alone[0].idle);
  EXPECT_FALSE(alone[1].idle);
}

TEST(TensorParallelEngine, SaysTheSameOnAllRanksOfATokenThatCannotBeDrawn) {
  const WideModel model(true);
  SamplingParams impossible = Sampling(1, 0, 1);
  impossible.set_min_tokens(1);
  for (int32_t id = 0; id < 151; ++id) impossible.add_stop_token_ids(id);
  const auto live = [&](RolloutEngine& engine) {
    std::vector<EngineEvent> all;
    for (uint64_t call = 0; call < 4; ++call) Add(engine, impossible, {model.tasks[call]}, 1 + call);
    while (!engine.idle()) {
      auto events = engine.Step();
      EXPECT_TRUE(events.ok()) << events.status();
      for (EngineEvent& event : *events) all.push_back(std::move(event));
    }
    return all;
  };
  LoadedEngine lone(model.options);
  const std::vector<EngineEvent> expected = live(*lone.engine);
  ASSERT_EQ(expected.size(), 4);
  ASSERT_TRUE(std::holds_alternative<absl::Status>(expected[0].what));
  WithTensorParallelRanks(model.options, 2,
                          [&](int, RolloutEngine& engine) { ExpectTheSame(live(engine), expected, 0); });
}

TEST(TensorParallelEngine, InBf16ItsLogProbsAreNearThoseOfOneRank) {
  const WideModel model(false);
  RolloutEngineOptions options = model.options;
  options.dtype = "bf16";
  // One token each: what follows an answer that differs cannot be compared.
  const SamplingParams sampling = Greedy(1);
  LoadedEngine lone(options);
  const Results expected = Generate(*lone.engine, sampling, model.tasks);
  WithTensorParallelRanks(options, 2, [&](int, RolloutEngine& engine) {
    for (const auto& [key, sequence] : Generate(engine, sampling, model.tasks)) {
      EXPECT_NEAR(sequence.log_probs(0), expected.at(key).log_probs(0), 0.1);
    }
  });
}

TEST(TensorParallelEngine, HoldsItsShareOfWeightsAndCache) {
  const WideModel model(false);
  LoadedEngine lone(model.options);
  const int64_t whole = lone.ledger.current(MemoryCategory::kParameters);
  const auto store = MakeLocalStore();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      Ledger ledger;
      RolloutEngineOptions options = model.options;
      options.tensor_parallel_size = 4;
      const auto engine = RolloutEngine::Load(options, ContextOf(rank, 4, store.get()), &ledger);
      ASSERT_TRUE(engine.ok()) << engine.status();
      EXPECT_LT(ledger.current(MemoryCategory::kParameters), whole * 3 / 10);
      // As many blocks, of a quarter of the heads.
      EXPECT_EQ(ledger.current(MemoryCategory::kKvCache), lone.ledger.current(MemoryCategory::kKvCache) / 4);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TensorParallelEngine, RefusesWhatItCannotDivide) {
  const auto refusal = [](const RolloutEngineOptions& options, int ranks) {
    const auto store = MakeLocalStore();
    std::vector<std::string> messages(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        Ledger ledger;
        const auto engine = RolloutEngine::Load(options, ContextOf(rank, ranks, store.get()), &ledger);
        EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
        messages[rank] = std::string(engine.status().message());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
    return messages[0];
  };
  RolloutEngineOptions options = OptionsFor("llama");
  options.tensor_parallel_size = 2;
  EXPECT_EQ(refusal(options, 1),
            "rollout.tensor_parallel_size is 2; allowed: 1 (the divisors of services.rollout.ranks, 1)");
  options.tensor_parallel_size = 4;
  EXPECT_EQ(refusal(options, 6),
            "rollout.tensor_parallel_size is 4; allowed: 1, 2, 3, 6 (the divisors of services.rollout.ranks, 6)");
  options.tensor_parallel_size = 2;
  options.zero_stage = 3;
  EXPECT_EQ(refusal(options, 2), "rollout.tensor_parallel_size is 2; allowed: 1 with rollout.zero_stage 3");
  options.zero_stage = 0;
  options.tensor_parallel_size = 4;
  EXPECT_EQ(refusal(options, 4),
            "rank 0 of 4: config.json: num_key_value_heads is 2, which cannot be "
            "divided over 4 ranks; allowed: multiples of 4");
}

TEST(RolloutEngine, RefusesRequestsByFieldValueAndWhatIsAllowed) {
  RolloutEngineOptions options = OptionsFor("llama");
  options.kv_cache_bytes = CacheBytes("llama", "fp32", 4);
  LoadedEngine engine(options);
  const auto message = [&](const std::function<void(SamplingParams*, GenerationTask*)>& spoil,
                           absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    SamplingParams sampling = Greedy(5);
    GenerationTask task;
    task.prompt_index = 41;
    task.ids = {5, 6, 7};
    spoil(&sampling, &task);
    absl::Status status = engine->Check(sampling);
    status.Update(engine->Check(sampling, task));
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(message([](auto*, auto* t) { t->ids[1] = 101; }), "prompt 41: ids[1] is 101; allowed: 0 to 100");
  EXPECT_EQ(message([](auto*, auto* t) { t->ids[0] = -1; }), "prompt 41: ids[0] is -1; allowed: 0 to 100");
  EXPECT_EQ(message([](auto*, auto* t) { t->ids.clear(); }), "prompt 41: ids are empty; at least 1 token is needed");
  EXPECT_EQ(message([](auto* s, auto*) { s->set_max_new_tokens(254); }),
            "prompt 41: ids (3) and max_new_tokens (254) together exceed max_model_len = 256");
  EXPECT_NE(message([](auto* s, auto*) { s->set_max_new_tokens(100); }, absl::StatusCode::kResourceExhausted)
                .find("there are 4 of 16 tokens"),
            std::string::npos);
  EXPECT_EQ(message([](auto* s, auto*) { s->set_top_p(0); }),
            "sampling.top_p is 0; allowed: above 0 and at most 1 (off)");
  EXPECT_EQ(message([](auto* s, auto*) { s->set_temperature(-1); }),
            "sampling.temperature is -1; allowed: finite and at least 0");
  EXPECT_EQ(message([](auto* s, auto*) { s->set_temperature(NAN); }).substr(0, 25), "sampling.temperature is n");
  EXPECT_EQ(message([](auto* s, auto*) { s->set_top_k(-2); }),
            "sampling.top_k is -2; allowed: -1 or 0 (off), or at least 1");
  EXPECT_EQ(message([](auto* s, auto*) { s->set_max_new_tokens(0); }),
            "sampling.max_new_tokens is 0; allowed: at least 1, or 0 with prompt_logprobs");
  EXPECT_EQ(message([](auto* s, auto*) { s->add_stop_token_ids(101); }),
            "sampling.stop_token_ids holds 101; allowed: 0 to 100");
}

TEST(RolloutEngine, RefusesOptionsThatCannotWork) {
  const auto store = MakeLocalStore();
  const auto message = [&](const std::function<void(RolloutEngineOptions*)>& spoil) {
    RolloutEngineOptions options = OptionsFor("llama");
    spoil(&options);
    Ledger ledger;
    const auto engine = RolloutEngine::Load(options, ContextOf(0, 1, store.get()), &ledger);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument) << engine.status();
    return std::string(engine.status().message());
  };
  EXPECT_EQ(message([](auto* o) { o->block_size = 20; }), "rollout.block_size is 20; allowed: multiples of 16");
  EXPECT_EQ(message([](auto* o) { o->zero_stage = 2; }), "rollout.zero_stage is 2; allowed: 0, 3");
  EXPECT_EQ(message([](auto* o) { o->dtype = "fp16"; }), "rollout.dtype is \"fp16\"; allowed: \"bf16\", \"fp32\"");
  EXPECT_NE(message([](auto* o) { o->max_model_len = 300; }).find("at most 256"), std::string::npos);
  EXPECT_NE(message([](auto* o) { o->kv_cache_bytes = 10; }).find("one block of 16 tokens takes"), std::string::npos);
}

}  // namespace
}  // namespace quartet

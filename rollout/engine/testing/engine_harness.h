// Engines, prompts and golden cases for the tests of RolloutEngine (tools/golden/make_rollout_golden.py).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/store/local_store.h"
#include "core/memory/ledger.h"
#include "nlohmann/json.hpp"
#include "rollout/engine/engine.h"

namespace quartet {

// By prompt index and sample.
using Results = std::map<std::pair<uint64_t, int32_t>, GeneratedSequence>;

nlohmann::json Golden();

nlohmann::json GoldenOf(const std::string& model);

std::string Folder(const std::string& model);

RolloutConfig OptionsFor(const std::string& model);

// The bytes of `blocks` blocks of cache.
int64_t CacheBytes(const std::string& model, const std::string& dtype, int64_t blocks);

RankContext ContextOf(int rank, int ranks, KeyValueStore* store);

// An engine of one rank with what it needs.
struct LoadedEngine {
  explicit LoadedEngine(const RolloutConfig& options, const Tokenizer* tokenizer = nullptr) : store(MakeLocalStore()) {
    auto loaded = RolloutEngine::Load(options, ContextOf(0, 1, store.get()), &ledger, tokenizer);
    if (!loaded.ok()) throw std::runtime_error(loaded.status().ToString());
    engine = *std::move(loaded);
  }
  RolloutEngine* operator->() { return engine.get(); }

  Ledger ledger;
  std::unique_ptr<KeyValueStore> store;
  std::unique_ptr<RolloutEngine> engine;
};

SamplingParams Greedy(int32_t max_new_tokens);

SamplingParams Sampling(float temperature, int32_t top_k, float top_p);

std::vector<GenerationTask> TasksOf(const nlohmann::json& golden, int32_t samples = 1);

void Add(RolloutEngine& engine, const SamplingParams& sampling, const std::vector<GenerationTask>& tasks,
         uint64_t call = 1);

// One step; what ended goes to `results`, by call.
void Step(RolloutEngine& engine, std::map<uint64_t, Results>* results);

Results Generate(RolloutEngine& engine, const SamplingParams& sampling, const std::vector<GenerationTask>& tasks);

std::vector<int32_t> AnswerOf(const GeneratedSequence& sequence);

void ExpectGolden(const nlohmann::json& golden, const Results& results);

// Runs `body` as each of `ranks` ranks that share an engine.
void WithRanks(const RolloutConfig& options, int ranks, const std::function<void(int, RolloutEngine&)>& body,
               const Tokenizer* tokenizer = nullptr);

void WithTwoShardedRanks(RolloutConfig options, const std::function<void(int, RolloutEngine&)>& body);

// `engines` engines of `ranks` ranks each.
void WithTensorParallelRanks(RolloutConfig options, int ranks, const std::function<void(int, RolloutEngine&)>& body,
                             int engines = 1, const Tokenizer* tokenizer = nullptr);

// As many steps for a rank whatever it has to do.
Results GenerateInSteps(RolloutEngine& engine, const SamplingParams& sampling, const std::vector<GenerationTask>& tasks,
                        int64_t steps);

// Fills staged ranges from another folder's file.
void Fill(const WeightStaging& staging, const RolloutEngine& engine, const std::string& model);

// Magnitudes from 2^-7 to 2^-3, of either sign, that depend on `pattern` and an element's tensor and
// place alone.
void FillWithPattern(WeightStaging& staging, int64_t pattern = 7919);

// A model that four ranks can divide, and prompts for it.
struct WideModel {
  explicit WideModel(bool tied, int64_t vocab_size = 151);
  std::string folder;
  RolloutConfig options;
  std::vector<GenerationTask> tasks;
};

}  // namespace quartet

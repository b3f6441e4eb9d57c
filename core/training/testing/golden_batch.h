// For tests of trainers' engines: a batch, an optimizer and what they lead to, by torch and transformers.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/training/batch/batch_split.h"
#include "core/training/engine/trainer_engine.h"
#include "core/training/testing/engine_ranks.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The `adamw` and `max_norm` of a golden file.
void SetGoldenOptimizer(const nlohmann::json& golden, TrainerConfig* trainer);

// Those of a step, as tools/golden/make_preference_golden.py has written pairs for a reward model: two sequences each.
std::vector<TrainingSequence> GoldenPairs(const nlohmann::json& golden, size_t step, bool has_margin);

// What tools/golden/make_service_golden.py has written, one sequence a forward, cut into micro-batches for the ranks of
// an engine.
struct GoldenBatch {
  // `arrays`: which of each sequence's arrays are sent. `micro_batch`: sequences in one, at most.
  GoldenBatch(const std::string& file, const std::vector<std::string_view>& arrays, int ranks, int micro_batch);

  std::vector<TrainingSequence> Of(int rank) const;
  // Those of `call`, which is of that rank's sequences.
  template <typename Call>
  void SetMicroBatches(int rank, Call* call) const {
    const std::vector<uint32_t>& sizes = split.micro_batch_sizes[rank];
    call->mutable_micro_batch_sizes()->Assign(sizes.begin(), sizes.end());
  }
  // What the engine answers of that rank's sequences, by their place in the batch.
  std::map<size_t, std::vector<float>> Forward(TrainerEngine& engine, int rank, double temperature) const;
  // It is `expected`, one array a sequence of the batch.
  void ExpectForward(TrainerEngine& engine, int rank, double temperature,
                     const std::vector<std::vector<float>>& expected) const;

  nlohmann::json golden;
  std::vector<TrainingSequence> sequences;
  BatchSplit split;
  int ranks;
};

// Calls `body` with a loaded engine, and the rank's sequences, on every rank.
template <typename Engine>
void OnEveryRank(const GoldenBatch& batch, const TrainerConfig& trainer, uint64_t seed,
                 const std::function<void(const RankContext&, Engine&, const std::vector<TrainingSequence>&)>& body) {
  RunEngineRanks(batch.ranks, [&](const RankContext& context) {
    auto engine = Engine::Load(trainer, seed, context);
    ASSERT_TRUE(engine.ok()) << engine.status();
    body(context, **engine, batch.Of(context.rank));
  });
}

}  // namespace quartet

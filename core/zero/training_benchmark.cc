// Tokens per second of training SmolLM2-135M's shapes in bf16 at stage 3: 2 ranks of 1 thread each, sequences of 256
// tokens, a micro-batch of 4, one optimizer step a micro-batch.
//
//   bazel build -c opt //core/zero:training_benchmark && bazel-bin/core/zero/training_benchmark
#include <ATen/TensorOperators.h>
#include <ATen/ops/randint.h>
#include <benchmark/benchmark.h>

#include <filesystem>

#include "core/comm/rank_threads.h"
#include "core/model/initialize.h"
#include "core/model/vocabulary_head.h"
#include "core/zero/trainable_model.h"

namespace quartet {
namespace {

ModelConfig SmolLm2() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 49152;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 30;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  config.max_position_embeddings = 8192;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 100000;
  config.tie_word_embeddings = true;
  return config;
}

constexpr int kRanks = 2;
constexpr int64_t kLength = 256, kSequences = 4, kTokens = kLength * kSequences;

PackedSequences RandomBatch() {
  PackedSequences batch;
  batch.ids_T = at::randint(49152, {kTokens}, at::TensorOptions(at::kLong));
  for (int64_t i = 0; i <= kSequences; ++i) batch.starts.push_back(i * kLength);
  return batch;
}

void BM_Train(benchmark::State& state) {
  const std::string folder = (std::filesystem::temp_directory_path() / "quartet_training_benchmark").string();
  if (!std::filesystem::exists(folder)) {
    absl::Status written = WriteRandomModel(SmolLm2(), HeadKind::kVocabulary, 1, Dtype::kBF16, folder);
    if (!written.ok()) return state.SkipWithError(written.ToString().c_str());
  }
  const int steps = 3;
  int64_t peak = 0;
  RunRanks(kRanks, [&](ProcessGroup& group) {
    Ledger ledger;
    TrainableModelOptions options;
    options.model.zero_stage = static_cast<int>(state.range(0));
    options.gradient_checkpointing = state.range(1) != 0;
    auto model = *TrainableModel::Load(folder, options, &group, &ledger);
    const PackedSequences batch = RandomBatch();
    auto step = [&] {
      model->ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
        return ChunkedLogProbs(hidden_TD, head_VD, batch.ids_T, 1.0, false).log_prob_T.mean() * (-1.0 / kRanks);
      });
      model->Step(1e-5, 1.0);
    };
    step();  // warms up
    group.Barrier();
    if (group.rank() == 0) {
      // One iteration of so many steps, known to all ranks.
      for (auto _ : state) {
        for (int i = 0; i < steps; ++i) step();
        group.Barrier();
      }
      peak = ledger.peak(MemoryCategory::kGathered);
    } else {
      for (int i = 0; i < steps; ++i) step();
      group.Barrier();
    }
  });
  state.SetItemsProcessed(state.iterations() * steps * kTokens * kRanks);
  state.counters["gathered_bytes"] = peak;
}

BENCHMARK(BM_Train)
    ->ArgNames({"stage", "checkpointing"})
    ->ArgsProduct({{3, 2, 0}, {1, 0}})
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace quartet

// The engine on a GPU: in fp32 against transformers' greedy generation, in bf16 the kernel against LibTorch's
// operators, and decoding by graphs, which fp32 has not, against decoding without.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core/comm/store/local_store.h"
#include "core/hardware/device.h"
#include "core/kernels/cuda/cuda_paged_attention.h"
#include "core/kernels/cuda/draw_rows.h"
#include "core/kernels/cuda/present_stream.h"
#include "core/kernels/torch_paged_attention.h"
#include "core/model/testing/golden_models.h"
#include "core/safetensors/reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "rollout/engine/engine.h"
#include "rollout/engine/sampling/sampler.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const at::Device kGpu(at::kCUDA, 0);

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status entered = EnterDevice(kGpu);
    if (!entered.ok()) GTEST_SKIP() << entered;
  }
};

json GoldenOf(const std::string& model) {
  std::ifstream file("rollout/engine/testdata/generate.json");
  for (const json& golden : json::parse(file)) {
    if (golden["model"] == model) return golden;
  }
  ADD_FAILURE() << "no golden cases of " << model;
  return {};
}

std::string Folder(const std::string& model) { return "core/model/testdata/" + model; }

RolloutConfig OptionsFor(const std::string& model, const std::string& dtype = "fp32") {
  RolloutConfig options;
  options.set_pretrain(Folder(model));
  options.set_dtype(dtype);
  options.set_max_model_len(256);
  return options;
}

struct LoadedEngine {
  explicit LoadedEngine(const RolloutConfig& options, const std::string& device = "cuda") : store(MakeLocalStore()) {
    RankContext context;
    context.service = "rollout";
    context.host = "127.0.0.1";
    context.device = device;
    context.store = store.get();
    auto loaded = RolloutEngine::Load(options, context, &ledger);
    status = loaded.status();
    if (loaded.ok()) engine = *std::move(loaded);
  }
  RolloutEngine* operator->() { return engine.get(); }

  Ledger ledger;
  std::unique_ptr<KeyValueStore> store;
  absl::Status status;
  std::unique_ptr<RolloutEngine> engine;
};

// Greedy answers to the golden prompts, in their order, with the log-probabilities of their tokens.
struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
};

std::vector<Answer> AnswersOf(RolloutEngine& engine, const json& golden, int32_t tokens) {
  const auto sampling = std::make_shared<SamplingParams>();
  sampling->set_temperature(0);
  sampling->set_top_p(1);
  sampling->set_max_new_tokens(tokens);
  sampling->set_n_samples(1);
  for (size_t i = 0; i < golden["cases"].size(); ++i) {
    GenerationTask task;
    task.call = 1;
    task.sampling = sampling;
    task.prompt_index = i;
    task.ids = golden["cases"][i]["prompt"].get<std::vector<int32_t>>();
    EXPECT_TRUE(engine.Check(*sampling, task).ok());
    engine.Add(task);
  }
  std::vector<Answer> answers(golden["cases"].size());
  while (!engine.idle()) {
    const auto events = engine.Step();
    EXPECT_TRUE(events.ok()) << events.status();
    if (!events.ok()) return answers;
    for (const EngineEvent& event : *events) {
      const auto* sequence = std::get_if<GeneratedSequence>(&event.what);
      if (sequence == nullptr) continue;
      Answer& answer = answers[sequence->prompt_index()];
      answer.log_probs.assign(sequence->log_probs().begin(), sequence->log_probs().end());
      answer.ids.assign(sequence->tokens().ids().end() - sequence->log_probs_size(), sequence->tokens().ids().end());
    }
  }
  return answers;
}

void ExpectGolden(RolloutEngine& engine, const std::string& name) {
  const json golden = GoldenOf(name);
  const std::vector<Answer> answers = AnswersOf(engine, golden, golden["max_new_tokens"]);
  for (size_t i = 0; i < answers.size(); ++i) {
    const json& expected = golden["cases"][i];
    EXPECT_EQ(answers[i].ids, expected["answer"].get<std::vector<int32_t>>()) << name << ", prompt " << i;
    ASSERT_EQ(answers[i].log_probs.size(), expected["log_probs"].size());
    for (size_t t = 0; t < answers[i].log_probs.size(); ++t) {
      EXPECT_NEAR(answers[i].log_probs[t], expected["log_probs"][t].get<float>(), 5e-5);
    }
  }
}

TEST_F(OnGpu, AnswersAreThoseOfTransformers) {
  for (const std::string& model : kGoldenModels) {
    LoadedEngine engine(OptionsFor(model));
    ASSERT_TRUE(engine.status.ok()) << engine.status;
    ExpectGolden(*engine.engine, model);
  }
}

TEST_F(OnGpu, PromptsInChunksChangeNothing) {
  RolloutConfig options = OptionsFor("llama");
  options.set_max_num_batched_tokens(16);
  LoadedEngine engine(options);
  ASSERT_TRUE(engine.status.ok()) << engine.status;
  ExpectGolden(*engine.engine, "llama");
}

TEST_F(OnGpu, Bf16StaysNearFp32) {
  const json golden = GoldenOf("llama");
  LoadedEngine bf16(OptionsFor("llama", "bf16")), fp32(OptionsFor("llama"));
  ASSERT_TRUE(bf16.status.ok() && fp32.status.ok()) << bf16.status << fp32.status;
  const std::vector<Answer> a = AnswersOf(*bf16.engine, golden, 1), b = AnswersOf(*fp32.engine, golden, 1);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i].log_probs[0], b[i].log_probs[0], 0.05) << "prompt " << i;
}

// Where two tokens are equally likely up to rounding answers may part; then and there alone.
void ExpectNear(const std::vector<Answer>& found, const std::vector<Answer>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  size_t same = 0, all = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].ids.size(), found[i].log_probs.size());
    all += expected[i].ids.size();
    for (size_t t = 0; t < std::min(found[i].ids.size(), expected[i].ids.size()); ++t) {
      EXPECT_NEAR(found[i].log_probs[t], expected[i].log_probs[t], 0.1) << what << ", prompt " << i << ", token " << t;
      if (found[i].ids[t] != expected[i].ids[t]) break;
      ++same;
    }
  }
  EXPECT_GT(2 * same, all) << what;
}

RolloutConfig Eager(RolloutConfig options) {
  options.set_enforce_eager(true);
  return options;
}

TEST_F(OnGpu, GraphsDecodeAsForwardsThatAreMadeAnewDo) {
  for (const std::string& model : kGoldenModels) {
    const json golden = GoldenOf(model);
    for (const int32_t max_num_seqs : {1, 3, 256}) {
      RolloutConfig options = OptionsFor(model, "bf16");
      options.set_max_num_seqs(max_num_seqs);
      LoadedEngine graphs(options), eager(Eager(options));
      ASSERT_TRUE(graphs.status.ok() && eager.status.ok()) << graphs.status << eager.status;
      const std::vector<Answer> found = AnswersOf(*graphs.engine, golden, 40);
      ExpectNear(found, AnswersOf(*eager.engine, golden, 40), model);
      EXPECT_GT(graphs->stats().replayed(), 5);
      EXPECT_EQ(eager->stats().replayed(), 0);
    }
  }
}

TEST_F(OnGpu, GraphsReadNewWeightsWhereTheOldOnesLay) {
  // Both keep llama's configuration, whose rope_theta is not mistral's.
  const json golden = GoldenOf("llama");
  LoadedEngine graphs(OptionsFor("llama", "bf16")), eager(Eager(OptionsFor("llama", "bf16")));
  ASSERT_TRUE(graphs.status.ok() && eager.status.ok()) << graphs.status << eager.status;
  const auto commit_mistral = [](RolloutEngine& engine, uint64_t version) {
    auto staging = engine.NewStaging();
    const auto reader = CheckpointReader::Open(Folder("mistral"));
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (const StagedRange& range : staging->ranges()) {
      std::vector<float> wide(range.elements.count);
      ASSERT_TRUE((*reader)
                      ->ReadRange(engine.tensors()[range.tensor].name, range.elements.begin, range.elements.count,
                                  reinterpret_cast<char*>(wide.data()))
                      .ok());
      for (size_t i = 0; i < wide.size(); ++i) static_cast<c10::BFloat16*>(range.data)[i] = wide[i];
    }
    engine.Commit(std::move(staging), version);
  };
  const std::vector<Answer> old = AnswersOf(*graphs.engine, golden, 40);
  commit_mistral(*eager.engine, 1);
  const std::vector<Answer> want = AnswersOf(*eager.engine, golden, 40);
  EXPECT_NE(want.front().ids, old.front().ids);
  commit_mistral(*graphs.engine, 1);
  int64_t replayed = graphs->stats().replayed();
  ExpectNear(AnswersOf(*graphs.engine, golden, 40), want, "after an update");
  EXPECT_GT(graphs->stats().replayed(), replayed + 5);
  // Into new memory: the old weights were given back.
  graphs->Sleep(/*release_weights=*/true);
  ASSERT_TRUE(graphs->Wake().ok());
  commit_mistral(*graphs.engine, 2);
  replayed = graphs->stats().replayed();
  ExpectNear(AnswersOf(*graphs.engine, golden, 40), want, "after a sleep without weights");
  EXPECT_GT(graphs->stats().replayed(), replayed + 5);
}

TEST_F(OnGpu, GraphsAreGivenBackInASleepAndMadeAgain) {
  const json golden = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama", "bf16"));
  ASSERT_TRUE(engine.status.ok()) << engine.status;
  const std::vector<Answer> before = AnswersOf(*engine.engine, golden, 40);
  int64_t asleep = 0;
  for (int i = 0; i < 4; ++i) {
    engine->Sleep(/*release_weights=*/i % 2 == 1);
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kActivations), 0);
    const int64_t reserved = ReadDeviceMemory(kGpu).reserved;
    if (i < 2) asleep = std::max(asleep, reserved);
    EXPECT_LE(reserved, asleep) << "sleep " << i << " leaves more than those before it";
    ASSERT_TRUE(engine->Wake().ok());
    const int64_t replayed = engine->stats().replayed();
    ExpectNear(AnswersOf(*engine.engine, golden, 40), before, "after a sleep");
    EXPECT_GT(engine->stats().replayed(), replayed + 5);
  }
}

TEST_F(OnGpu, DrawsAreThoseOfTheCpu) {
  at::manual_seed(1);
  constexpr int64_t kVocabulary = 50'003;
  constexpr int32_t kRows = 40;
  at::Tensor logits = at::randn({kRows, kVocabulary}) * 3;
  logits.select(0, 7).fill_(-std::numeric_limits<float>::infinity());
  logits[8][3] = std::numeric_limits<float>::quiet_NaN();
  // Of equals the lower id, where the largest is taken, and where a cut goes through them.
  logits[9][100] = logits[9][70] = logits[10][40'000] = logits[10][90] = 100;
  for (int id = 49'000; id < 49'100; id += 7) logits[11][id] = logits[12][id] = 20;
  // Nothing is left where token 5 is forbidden.
  logits.select(0, 13).fill_(-std::numeric_limits<float>::infinity());
  logits[13][5] = 1;
  const at::Tensor there = logits.to(kGpu);
  const std::vector<int32_t> forbidden = {5, 70};
  struct Case {
    SamplingRule rule;
    bool forbids = false;
  };
  std::vector<Case> cases;
  for (const float temperature : {0.0f, 0.7f, 1.0f, 1.5f}) {
    for (const bool raw : {false, true}) cases.push_back({{.temperature = temperature, .raw_log_probs = raw}});
    cases.push_back({{.temperature = temperature}, /*forbids=*/true});
    cases.push_back(
        {{.temperature = temperature, .logit_bias = {{49'000, 3.0f}, {90, -200.0f}, {49'000, 1.5f}}}, true});
    for (const auto& [top_k, top_p, min_p] : std::vector<std::tuple<int, float, float>>{{1, 1, 0},
                                                                                        {20, 1, 0},
                                                                                        {0, 0.9f, 0},
                                                                                        {0, 0.5f, 0},
                                                                                        {0, 1, 0.05f},
                                                                                        {50, 0.95f, 0},
                                                                                        {1000, 0.7f, 0.01f},
                                                                                        {0, 1e-6f, 0},
                                                                                        {0, 0.999f, 0}}) {
      cases.push_back({{.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p}});
      cases.push_back({{.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p}, true});
    }
  }
  Sampler sampler;
  for (size_t c = 0; c < cases.size(); ++c) {
    const SamplingRule& rule = cases[c].rule;
    std::vector<RowToDraw> rows;
    std::vector<LogitEdit> edits = {{1, 1000}};  // another's
    for (const int32_t id : forbidden) {
      if (cases[c].forbids) edits.push_back({id, -std::numeric_limits<float>::infinity()});
    }
    for (const auto& [id, bias] : rule.logit_bias) edits.push_back({id, bias});
    for (int32_t i = 0; i < kRows; ++i) {
      rows.push_back({.noise_key = NoiseKey(1, 2, i, static_cast<int64_t>(c)),
                      .row = kRows - 1 - i,
                      .temperature = rule.temperature,
                      .log_prob_temperature = rule.log_prob_temperature(),
                      .top_k = rule.top_k,
                      .top_p = rule.top_p,
                      .min_p = rule.min_p,
                      .edits_begin = 1,
                      .edits_end = static_cast<int32_t>(edits.size())});
    }
    const auto on_gpu = [](const auto& values) {
      return at::from_blob(const_cast<void*>(static_cast<const void*>(values.data())),
                           {static_cast<int64_t>(values.size() * sizeof(values[0]))}, at::kByte)
          .to(kGpu);
    };
    std::vector<DrawnRow> drawn(rows.size());
    const at::Tensor rows_there = on_gpu(rows), edits_there = on_gpu(edits), drawn_there = on_gpu(drawn);
    const at::Tensor scratch = at::empty({DrawRowsScratch(kVocabulary, kRows)}, rows_there.options());
    ASSERT_EQ(LaunchDrawRows(there.const_data_ptr<float>(), kVocabulary,
                             static_cast<const RowToDraw*>(rows_there.const_data_ptr()),
                             static_cast<const LogitEdit*>(edits_there.const_data_ptr()), kRows,
                             rule.top_k > 0 || rule.top_p < 1, scratch.mutable_data_ptr(),
                             static_cast<DrawnRow*>(drawn_there.mutable_data_ptr()), PresentStream(kGpu)),
              nullptr);
    at::from_blob(drawn.data(), {drawn_there.numel()}, at::kByte).copy_(drawn_there);
    for (int32_t i = 0; i < kRows; ++i) {
      SamplingHistory history;
      if (cases[c].forbids) history.forbidden = forbidden;
      const auto expected =
          sampler.Sample(absl::MakeConstSpan(logits.const_data_ptr<float>() + rows[i].row * kVocabulary, kVocabulary),
                         rule, history, rows[i].noise_key);
      EXPECT_EQ(absl::IsInternal(expected.status()), !std::isfinite(drawn[i].largest)) << rows[i].row;
      EXPECT_EQ(expected.ok(), std::isfinite(drawn[i].largest) && std::isfinite(drawn[i].largest_edited))
          << rows[i].row << ": " << expected.status();
      if (!expected.ok()) continue;
      EXPECT_EQ(drawn[i].id, expected->id)
          << "row " << rows[i].row << " at " << rule.temperature << ", top_k " << rule.top_k << ", top_p " << rule.top_p
          << ", min_p " << rule.min_p << (cases[c].forbids ? ", some forbidden" : "");
      EXPECT_NEAR(drawn[i].log_prob, expected->log_prob, 2e-5);
      EXPECT_NEAR(drawn[i].sampled_log_prob, expected->sampled_log_prob, 2e-5);
    }
  }
}

// Of one forward, some by the GPU and some by the CPU.
TEST_F(OnGpu, CallsThatAreNotForTheGpuAreDrawnByTheCpu) {
  const json golden = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama", "bf16")), cpu(OptionsFor("llama", "bf16"), "cpu");
  ASSERT_TRUE(engine.status.ok() && cpu.status.ok()) << engine.status << cpu.status;
  const auto answers_of = [&](RolloutEngine& of) {
    std::vector<std::vector<float>> log_probs(4);
    for (uint64_t call = 0; call < 4; ++call) {
      const auto sampling = std::make_shared<SamplingParams>();
      sampling->set_temperature(call % 2 == 0 ? 0 : 1);
      sampling->set_top_p(1);
      sampling->set_seed(call);
      sampling->set_max_new_tokens(1);
      sampling->set_n_samples(1);
      if (call >= 2) sampling->set_logprobs(2);
      GenerationTask task;
      task.call = call;
      task.sampling = sampling;
      task.ids = golden["cases"][0]["prompt"].get<std::vector<int32_t>>();
      EXPECT_TRUE(of.Check(*sampling, task).ok());
      of.Add(task);
    }
    while (!of.idle()) {
      const auto events = of.Step();
      EXPECT_TRUE(events.ok()) << events.status();
      if (!events.ok()) break;
      for (const EngineEvent& event : *events) {
        if (const auto* sequence = std::get_if<GeneratedSequence>(&event.what)) {
          log_probs[event.call].assign(sequence->log_probs().begin(), sequence->log_probs().end());
        }
      }
    }
    return log_probs;
  };
  const auto found = answers_of(*engine.engine), expected = answers_of(*cpu.engine);
  for (size_t call = 0; call < 4; ++call) {
    ASSERT_EQ(found[call].size(), 1u);
    ASSERT_EQ(expected[call].size(), 1u);
    EXPECT_NEAR(found[call][0], expected[call][0], 0.05) << "call " << call;
  }
}

struct Shape {
  int64_t kv_heads, group, head_dim;
};

class Kernel : public OnGpu, public ::testing::WithParamInterface<Shape> {};
INSTANTIATE_TEST_SUITE_P(Heads, Kernel,
                         ::testing::Values(Shape{3, 3, 64}, Shape{2, 6, 128}, Shape{8, 4, 128}, Shape{2, 7, 80},
                                           Shape{1, 1, 256}, Shape{1, 16, 64}),
                         [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST_P(Kernel, GivesWhatLibTorchsOperatorsGive) {
  const auto [K, G, d] = GetParam();
  const int64_t S = 16, blocks = 1000;
  at::manual_seed(1);
  const at::TensorOptions bf16 = at::TensorOptions(at::kBFloat16).device(kGpu);
  const at::Tensor keys = at::randn({blocks * S, K, d}, bf16), values = at::randn({blocks * S, K, d}, bf16);
  std::vector<int32_t> table(blocks);
  for (int32_t i = 0; i < blocks; ++i) table[i] = i * 7 % static_cast<int32_t>(blocks);
  const std::vector<std::vector<AttentionChunk>> forwards = {
      {{table.data(), 0, 500}, {table.data() + 100, 37, 80}, {table.data() + 200, 0, 1}},
      {{table.data(), 3000, 1}},  // keys in parts
      {{table.data(), 5000, 1}, {table.data() + 400, 2, 1}, {table.data() + 500, 700, 3}, {table.data() + 600, 9, 90}},
  };
  for (const std::vector<AttentionChunk>& chunks : forwards) {
    int64_t T = 5;  // padding
    for (const AttentionChunk& chunk : chunks) T += chunk.count;
    const at::Tensor q = at::randn({T, K * G, d}, bf16) * 2;
    const at::Tensor expected =
        TorchPagedAttention(S, chunks, K * G, kGpu).Attend(q, keys, values).to(at::kFloat).to(at::kCPU);
    const at::Tensor found =
        CudaPagedAttention(S, chunks, K * G, K, d, kGpu).Attend(q, keys, values).to(at::kFloat).cpu();
    EXPECT_LE((found - expected).abs().max().item<float>(), 0.02);
    EXPECT_GT(expected.abs().max().item<float>(), 0.1);
  }
}

TEST_F(OnGpu, NewWeightsAreStagedOnTheHostAndTakeTheOldOnesPlace) {
  LoadedEngine engine(OptionsFor("llama"));
  ASSERT_TRUE(engine.status.ok()) << engine.status;
  const int64_t weights = engine.ledger.current(MemoryCategory::kParameters);
  auto staging = engine->NewStaging();
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), weights);
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters, MemoryTier::kHost), weights);
  const auto reader = CheckpointReader::Open(Folder("mistral"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const StagedRange& range : staging->ranges()) {
    ASSERT_EQ(range.elements.rows, 1);
    ASSERT_TRUE((*reader)
                    ->ReadRange(engine->tensors()[range.tensor].name, range.elements.begin, range.elements.count,
                                static_cast<char*>(range.data))
                    .ok());
  }
  ExpectGolden(*engine.engine, "llama");
  engine->Commit(std::move(staging), 3);
  EXPECT_EQ(engine->version(), 3);
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), weights);
  ExpectGolden(*engine.engine, "llama updated to mistral");
  // The next version has the same memory, until a sleep gives it back.
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters, MemoryTier::kHost), weights);
  staging = engine->NewStaging();
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters, MemoryTier::kHost), weights);
  engine->Commit(std::move(staging), 4);
  engine->Sleep(/*release_weights=*/false);
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters, MemoryTier::kHost), 0);
}

TEST_F(OnGpu, SleepGivesMemoryBackToTheDevice) {
  LoadedEngine engine(OptionsFor("llama"));
  ASSERT_TRUE(engine.status.ok()) << engine.status;
  ExpectGolden(*engine.engine, "llama");
  for (const bool release_weights : {false, true}) {
    const int64_t before = ReadDeviceMemory(kGpu).tensors;
    engine->Sleep(release_weights);
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kKvCache), 0);
    EXPECT_LT(ReadDeviceMemory(kGpu).tensors, before);
    ASSERT_TRUE(engine->Wake().ok());
    ExpectGolden(*engine.engine, "llama");
  }
}

TEST_F(OnGpu, TheCacheGetsWhatTheLargestForwardLeaves) {
  RolloutConfig options = OptionsFor("llama", "bf16");
  options.set_max_num_seqs(1 << 20);  // so many blocks that the device's memory is the bound
  options.set_max_num_batched_tokens(512);
  options.set_gpu_memory_utilization(0.5);
  LoadedEngine engine(options);
  ASSERT_TRUE(engine.status.ok()) << engine.status;
  GiveBackDeviceMemory();
  const DeviceMemory memory = ReadDeviceMemory(kGpu);  // graphs and what they keep are in it
  const double taken = static_cast<double>(memory.reserved + memory.others) / static_cast<double>(memory.total);
  EXPECT_LE(taken, 0.501);

  options.set_gpu_memory_utilization(1e-4);
  LoadedEngine none(options);
  EXPECT_EQ(none.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.status.message()), HasSubstr("rollout.gpu_memory_utilization is 0.0001"));
}

}  // namespace
}  // namespace quartet

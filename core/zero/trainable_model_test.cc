#include "core/zero/trainable_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/comm/rank_threads.h"
#include "core/model/initialize.h"
#include "core/safetensors/reader.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

const char kTestdata[] = "core/zero/testdata/";

// What tools/golden/make_training_golden.py wrote.
struct Golden {
  std::vector<std::vector<int64_t>> sequences;
  std::vector<double> losses, grad_norms;
  AdamWOptions adamw;
  double learning_rate, max_norm;
};

Golden ReadGolden(const std::string& model) {
  const auto json = nlohmann::json::parse(std::ifstream(kTestdata + model + ".json"));
  const auto& options = json["options"];
  Golden golden;
  golden.sequences = json["sequences"].get<std::vector<std::vector<int64_t>>>();
  golden.losses = json["losses"].get<std::vector<double>>();
  golden.grad_norms = json["grad_norms"].get<std::vector<double>>();
  golden.adamw.beta1 = options["beta1"];
  golden.adamw.beta2 = options["beta2"];
  golden.adamw.eps = options["eps"];
  golden.adamw.weight_decay = options["weight_decay"];
  golden.learning_rate = options["learning_rate"];
  golden.max_norm = options["max_norm"];
  return golden;
}

PackedSequences Pack(const std::vector<std::vector<int64_t>>& sequences) {
  PackedSequences batch;
  batch.starts = {0};
  std::vector<int64_t> ids;
  for (const auto& sequence : sequences) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    batch.starts.push_back(ids.size());
  }
  batch.ids_T = at::tensor(ids, at::TensorOptions(at::kLong));
  return batch;
}

// Minus the log-probabilities of all tokens but the first of each sequence, times `weight`.
at::Tensor NextTokenLoss(const PackedSequences& batch, const at::Tensor& hidden_TD, const at::Tensor& head_VD,
                         double weight) {
  const at::ScalarType type = WideType(hidden_TD.scalar_type());
  const at::Tensor log_probs = at::log_softmax(hidden_TD.to(type).matmul(head_VD.to(type).t()), -1);
  std::vector<int64_t> from;
  for (size_t i = 0; i + 1 < batch.starts.size(); ++i) {
    for (int64_t t = batch.starts[i]; t + 1 < batch.starts[i + 1]; ++t) from.push_back(t);
  }
  const at::Tensor rows = at::tensor(from, at::TensorOptions(at::kLong));
  const at::Tensor targets = batch.ids_T.index_select(0, rows + 1).unsqueeze(1);
  return log_probs.index_select(0, rows).gather(1, targets).sum() * -weight;
}

int64_t PredictedTokens(const std::vector<std::vector<int64_t>>& sequences) {
  int64_t count = 0;
  for (const auto& sequence : sequences) count += static_cast<int64_t>(sequence.size()) - 1;
  return count;
}

std::unique_ptr<TrainableModel> LoadOrDie(const std::string& folder, const TrainableModelOptions& options,
                                          ProcessGroup& group, Ledger& ledger) {
  auto model = TrainableModel::Load(folder, options, &group, &ledger);
  if (!model.ok()) throw std::runtime_error(model.status().ToString());
  return *std::move(model);
}

// Gradients of one batch, of which this rank takes every size-th sequence, `micro` at a time. Returns its loss.
double Accumulate(TrainableModel& model, const std::vector<std::vector<int64_t>>& sequences, int micro) {
  ProcessGroup& group = model.model().process_group();
  std::vector<std::vector<int64_t>> mine;
  for (size_t i = group.rank(); i < sequences.size(); i += group.size()) mine.push_back(sequences[i]);
  const int most = (static_cast<int>(sequences.size()) + group.size() - 1) / group.size();
  double loss = 0;
  for (int begin = 0; begin < most; begin += micro) {
    const int end = std::min<int>(begin + micro, mine.size());
    const PackedSequences batch =
        begin < end ? Pack({mine.begin() + begin, mine.begin() + end}) : PackedSequences{at::empty({0}, at::kLong), {}};
    loss += model.ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_weight) {
      return NextTokenLoss(batch, hidden_TD, head_weight, 1.0 / PredictedTokens(sequences));
    });
  }
  at::Tensor total = at::tensor({loss}, at::TensorOptions(at::kDouble));
  group.AllReduceSum(total)->Wait();
  return total.item<double>();
}

struct Curve {
  std::vector<double> losses, grad_norms;
};

struct Arrangement {
  int ranks;
  int stage;
  bool checkpointing;
  int micro;
  int shard_size = 0;  // 0: all
  bool adam_offload = false, offload_param = false, activation_offload = false, no_sync = false;
};

std::ostream& operator<<(std::ostream& out, const Arrangement& a) {
  return out << a.ranks << " ranks, stage " << a.stage << ", checkpointing " << a.checkpointing << ", micro-batch "
             << a.micro << ", shard size " << a.shard_size << (a.adam_offload ? ", optimizer" : "")
             << (a.offload_param ? ", parameters" : "") << (a.activation_offload ? ", activations" : "")
             << (a.adam_offload || a.activation_offload ? " in host memory" : "") << (a.no_sync ? ", no sync" : "");
}

TrainableModelOptions Fp32Options(const Golden& golden, int stage, bool checkpointing) {
  TrainableModelOptions options;
  options.model.zero_stage = stage;
  options.model.compute_dtype = at::kFloat;
  options.adamw = golden.adamw;
  options.gradient_checkpointing = checkpointing;
  return options;
}

// Ranks of a mesh, each with `shard_size` ranks a replica (0: all).
void RunMesh(int ranks, int shard_size, const std::function<void(Mesh&)>& body) {
  RunRanksOfStore(ranks, [&](KeyValueStore* store, const ProcessGroupOptions& options) {
    auto mesh = MakeMesh(store, options, shard_size == 0 ? ranks : shard_size);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    body(**mesh);
  });
}

Curve Train(const std::string& name, const Arrangement& arrangement) {
  const Golden golden = ReadGolden(name);
  Curve curve;
  RunMesh(arrangement.ranks, arrangement.shard_size, [&](Mesh& mesh) {
    ProcessGroup& group = mesh.world();
    Ledger ledger;
    TrainableModelOptions options = Fp32Options(golden, arrangement.stage, arrangement.checkpointing);
    options.model.adam_offload = arrangement.adam_offload;
    options.model.offload_param = arrangement.offload_param;
    options.activation_offload = arrangement.activation_offload;
    options.no_sync = arrangement.no_sync;
    auto loaded = TrainableModel::Load(kTestdata + name, options, &mesh, &ledger);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    auto model = *std::move(loaded);
    for (size_t step = 0; step < golden.losses.size(); ++step) {
      const double loss = Accumulate(*model, golden.sequences, arrangement.micro);
      EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
      const StepResult result = model->Step(golden.learning_rate, golden.max_norm);
      EXPECT_FALSE(result.skipped);
      if (group.rank() == 0) {
        curve.losses.push_back(loss);
        curve.grad_norms.push_back(result.grad_norm);
      }
    }
    EXPECT_EQ(model->steps(), static_cast<int64_t>(golden.losses.size()));
    EXPECT_EQ(ledger.current(MemoryCategory::kCommunication), 0);
    EXPECT_EQ(ledger.current(MemoryCategory::kActivations), 0);
  });
  return curve;
}

class Training : public testing::TestWithParam<std::tuple<std::string, Arrangement>> {};

INSTANTIATE_TEST_SUITE_P(Arrangements, Training,
                         testing::Combine(testing::Values("llama", "qwen2_tied"),
                                          testing::Values(Arrangement{1, 3, true, 8}, Arrangement{1, 3, true, 3},
                                                          Arrangement{1, 3, false, 8}, Arrangement{2, 3, true, 4},
                                                          Arrangement{3, 3, true, 1}, Arrangement{3, 3, false, 2},
                                                          Arrangement{1, 0, true, 8}, Arrangement{2, 0, true, 4},
                                                          Arrangement{3, 0, false, 1}, Arrangement{1, 2, true, 8},
                                                          Arrangement{2, 2, true, 4}, Arrangement{3, 2, true, 1},
                                                          Arrangement{2, 2, false, 3})));

// A mesh of 2 x 2, of 3 replicas of one rank, of 2 replicas of 3; each part of the state in host memory by itself and
// all of it; micro-batches reduced together.
INSTANTIATE_TEST_SUITE_P(
    Modes, Training,
    testing::Combine(
        testing::Values("llama", "qwen2_tied"),
        testing::Values(
            Arrangement{.ranks = 4, .stage = 3, .checkpointing = true, .micro = 2, .shard_size = 2},
            Arrangement{.ranks = 4, .stage = 2, .checkpointing = false, .micro = 1, .shard_size = 2},
            Arrangement{.ranks = 3, .stage = 3, .checkpointing = true, .micro = 2, .shard_size = 1},
            Arrangement{.ranks = 6, .stage = 3, .checkpointing = true, .micro = 1, .shard_size = 3},
            Arrangement{.ranks = 1, .stage = 3, .checkpointing = true, .micro = 4, .adam_offload = true},
            Arrangement{.ranks = 2, .stage = 3, .checkpointing = true, .micro = 2, .adam_offload = true},
            Arrangement{.ranks = 3, .stage = 2, .checkpointing = false, .micro = 1, .adam_offload = true},
            Arrangement{.ranks = 2,
                        .stage = 3,
                        .checkpointing = false,
                        .micro = 2,
                        .adam_offload = true,
                        .offload_param = true},
            Arrangement{
                .ranks = 1, .stage = 3, .checkpointing = true, .micro = 2, .adam_offload = true, .offload_param = true},
            Arrangement{.ranks = 2, .stage = 3, .checkpointing = true, .micro = 2, .activation_offload = true},
            Arrangement{.ranks = 1, .stage = 0, .checkpointing = true, .micro = 3, .activation_offload = true},
            Arrangement{.ranks = 1, .stage = 3, .checkpointing = true, .micro = 2, .no_sync = true},
            Arrangement{.ranks = 2, .stage = 3, .checkpointing = true, .micro = 1, .no_sync = true},
            Arrangement{.ranks = 3, .stage = 2, .checkpointing = false, .micro = 1, .no_sync = true},
            Arrangement{.ranks = 4,
                        .stage = 3,
                        .checkpointing = true,
                        .micro = 1,
                        .shard_size = 2,
                        .adam_offload = true,
                        .offload_param = true,
                        .activation_offload = true,
                        .no_sync = true})));

// Three ranks share eight sequences: one goes without in the last micro-batch.
TEST_P(Training, FollowsTheLossCurveOfTransformersWithTorchsAdamW) {
  const auto& [name, arrangement] = GetParam();
  const Golden golden = ReadGolden(name);
  const Curve curve = Train(name, arrangement);
  ASSERT_EQ(curve.losses.size(), 20u);
  EXPECT_LT(curve.losses.back(), 0.8 * curve.losses.front());
  for (size_t step = 0; step < curve.losses.size(); ++step) {
    EXPECT_NEAR(curve.losses[step] / golden.losses[step], 1, 1e-5) << "step " << step;
    EXPECT_NEAR(curve.grad_norms[step] / golden.grad_norms[step], 1, 1e-4) << "step " << step;
  }
}

ModelConfig DeepConfig() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 97;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = 16;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 12;
  config.max_position_embeddings = 128;
  return config;
}

std::string FreshFolder(const std::string& name) {
  const fs::path folder = fs::path(testing::TempDir()) / ("trainable_model_test_" + name);
  fs::remove_all(folder);
  return folder.string();
}

const std::vector<std::vector<int64_t>> kSequences = {{1, 2, 3, 4, 5, 6}, {7, 8, 9}, {10, 11, 12, 13}, {14, 15}};

TEST(TrainableModel, GathersAtMostTwoGroupsAndAQuarterOfADeepModel) {
  const std::string folder = FreshFolder("deep");
  ASSERT_TRUE(WriteRandomModel(DeepConfig(), HeadKind::kVocabulary, 3, Dtype::kF32, folder).ok());
  for (bool checkpointing : {true, false}) {
    RunRanks(2, [&](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options;
      options.model.compute_dtype = at::kFloat;
      options.gradient_checkpointing = checkpointing;
      auto model = LoadOrDie(folder, options, group, ledger);
      const auto& layout = model->model().layout();
      int64_t largest = 0;
      for (const auto& parameters : layout.groups) largest = std::max(largest, parameters.numel() * 4);
      for (int step = 0; step < 2; ++step) {
        Accumulate(*model, kSequences, 1);
        EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
        model->Step(1e-3, 1);
      }
      // A group's buffer is padded by less than 256 bytes a tensor and a rank.
      EXPECT_LE(ledger.peak(MemoryCategory::kGathered), 2 * (largest + 256 * 16));
      EXPECT_GT(ledger.peak(MemoryCategory::kGathered), largest) << "the next group is not gathered ahead";
      EXPECT_LT(ledger.peak(MemoryCategory::kGathered), layout.numel() * 4 / 4);
      // One reduce-scatter under way (input, what is received, and its sum) beside the next flat gradient.
      EXPECT_LE(ledger.peak(MemoryCategory::kCommunication), 4 * (largest + 256 * 16));
      // Master, gradient and two moments: 16 bytes a parameter over two ranks, and padding.
      EXPECT_LT(ledger.current(MemoryCategory::kParameters) + ledger.current(MemoryCategory::kGradients) +
                    ledger.current(MemoryCategory::kOptimizer),
                layout.numel() * 16 / 2 * 1.1);
    });
  }
}

TEST(TrainableModel, AnExceptionOfTheLossLeavesAModelThatTrainsOn) {
  const Golden golden = ReadGolden("llama");
  for (bool checkpointing : {true, false}) {
    RunRanks(2, [&](ProcessGroup& group) {
      Ledger ledger;
      auto model = LoadOrDie(std::string(kTestdata) + "llama", Fp32Options(golden, 3, checkpointing), group, ledger);
      Accumulate(*model, {golden.sequences[0], golden.sequences[1]}, 1);
      const PackedSequences batch = Pack(golden.sequences);
      EXPECT_THROW(model->ForwardBackward(
                       batch, [](const at::Tensor&, const at::Tensor&) -> at::Tensor { throw std::logic_error("no"); }),
                   std::logic_error);
      EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
      EXPECT_EQ(ledger.current(MemoryCategory::kCommunication), 0);
      // What had been accumulated before is gone: the next step is the golden run's first.
      EXPECT_NEAR(Accumulate(*model, golden.sequences, 2) / golden.losses[0], 1, 1e-5);
      EXPECT_NEAR(model->Step(golden.learning_rate, golden.max_norm).grad_norm / golden.grad_norms[0], 1, 1e-4);
      EXPECT_NEAR(Accumulate(*model, golden.sequences, 2) / golden.losses[1], 1, 1e-5);
    });
  }
}

TEST(TrainableModel, AGradientThatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
  const Golden golden = ReadGolden("llama");
  for (int stage : {0, 2, 3}) {
    for (double poison : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      RunRanks(2, [&](ProcessGroup& group) {
        Ledger ledger;
        auto model = LoadOrDie(std::string(kTestdata) + "llama", Fp32Options(golden, stage, true), group, ledger);
        const PackedSequences batch = Pack(golden.sequences);
        model->ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_weight) {
          const at::Tensor loss = NextTokenLoss(batch, hidden_TD, head_weight, 0.01);
          return group.rank() == 1 ? loss * poison : loss;
        });
        const StepResult result = model->Step(golden.learning_rate, golden.max_norm);
        EXPECT_TRUE(result.skipped);
        EXPECT_FALSE(std::isfinite(result.grad_norm));
        EXPECT_EQ(model->steps(), 0);
        EXPECT_EQ(model->skipped_steps(), 1);
        // Nothing was changed: the golden run starts from here.
        for (int step = 0; step < 2; ++step) {
          EXPECT_NEAR(Accumulate(*model, golden.sequences, 4) / golden.losses[step], 1, 1e-5);
          EXPECT_FALSE(model->Step(golden.learning_rate, golden.max_norm).skipped);
        }
      });
    }
  }
}

TEST(TrainableModel, ALossThatDoesNotDependOnTheModelGivesAZeroGradient) {
  const Golden golden = ReadGolden("llama");
  RunRanks(1, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = LoadOrDie(std::string(kTestdata) + "llama", Fp32Options(golden, 3, true), group, ledger);
    EXPECT_EQ(model->ForwardBackward(Pack(golden.sequences),
                                     [](const at::Tensor&, const at::Tensor&) { return at::tensor({2.5f}).sum(); }),
              2.5);
    EXPECT_EQ(model->Step(1e-3, 1).grad_norm, 0);
  });
}

TEST(TrainableModel, TrainsInBf16CloseToFp32) {
  const Golden golden = ReadGolden("llama");
  for (int stage : {0, 2, 3}) {
    RunRanks(2, [&](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options = Fp32Options(golden, stage, true);
      options.model.compute_dtype = at::kBFloat16;
      auto model = LoadOrDie(std::string(kTestdata) + "llama", options, group, ledger);
      double loss = 0;
      for (int step = 0; step < 20; ++step) {
        loss = Accumulate(*model, golden.sequences, 4);
        if (step < 3) {
          EXPECT_NEAR(loss / golden.losses[step], 1, 0.02) << "step " << step;
        }
        model->Step(golden.learning_rate, golden.max_norm);
      }
      // bf16 rounds weights of 0.2 in steps of 0.001; were the master weights rounded too, steps of 0.004 would be
      // lost.
      EXPECT_NEAR(loss / golden.losses[19], 1, 0.2);
    });
  }
}

// In double precision what is left of a difference is no rounding: the gradient is the same however the batch is cut.
TEST(TrainableModel, TheGradientInFp64DoesNotDependOnTheCutOfTheBatch) {
  const Golden golden = ReadGolden("qwen2_tied");
  std::vector<at::Tensor> expected;
  for (const auto& [ranks, micro, checkpointing] :
       {std::tuple(1, 8, true), {1, 1, false}, {1, 3, true}, {2, 2, true}, {3, 1, false}}) {
    RunRanks(ranks, [&, ranks = ranks, micro = micro, checkpointing = checkpointing](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options = Fp32Options(golden, 3, checkpointing);
      options.model.compute_dtype = at::kDouble;
      auto model = LoadOrDie(std::string(kTestdata) + "qwen2_tied", options, group, ledger);
      EXPECT_NEAR(Accumulate(*model, golden.sequences, micro) / golden.losses[0], 1, 1e-5);
      for (int g = 0; g < static_cast<int>(model->model().layout().groups.size()); ++g) {
        const at::Tensor part = model->gradient(g);
        EXPECT_EQ(part.scalar_type(), at::kDouble);
        at::Tensor whole = at::zeros({ranks * part.numel()}, part.options());
        whole.narrow(0, group.rank() * part.numel(), part.numel()).copy_(part);
        group.AllGatherInPlace(whole)->Wait();
        whole = whole.narrow(0, 0, model->model().layout().groups[g].numel());  // without padding of more ranks
        if (group.rank() != 0) continue;
        if (ranks == 1 && micro == 8) expected.push_back(whole);
        const at::Tensor difference = (whole - expected[g]).norm() / expected[g].norm();
        EXPECT_LT(difference.item<double>(), 1e-12) << "group " << g << ", " << ranks << " ranks";
      }
    });
  }
}

TEST(TrainableModel, StateThatIsCopiedTrainsOnToTheBit) {
  const Golden golden = ReadGolden("llama");
  for (int stage : {0, 2, 3}) {
    RunRanks(2, [&](ProcessGroup& group) {
      Ledger ledger;
      const TrainableModelOptions options = Fp32Options(golden, stage, true);
      auto first = LoadOrDie(std::string(kTestdata) + "llama", options, group, ledger);
      for (int step = 0; step < 3; ++step) {
        Accumulate(*first, golden.sequences, 4);
        first->Step(golden.learning_rate, golden.max_norm);
      }
      auto second = LoadOrDie(std::string(kTestdata) + "llama", options, group, ledger);
      for (int g = 0; g < static_cast<int>(first->model().layout().groups.size()); ++g) {
        const std::vector<NamedState> from = first->state(g), to = second->state(g);
        ASSERT_EQ(from.size(), to.size());
        for (size_t i = 0; i < from.size(); ++i) {
          EXPECT_EQ(from[i].name, to[i].name);
          to[i].values.copy_(from[i].values);
        }
      }
      second->Restore(first->steps());
      EXPECT_EQ(second->steps(), 3);
      for (int step = 0; step < 2; ++step) {
        EXPECT_EQ(Accumulate(*first, golden.sequences, 4), Accumulate(*second, golden.sequences, 4));
        EXPECT_EQ(first->Step(golden.learning_rate, golden.max_norm).grad_norm,
                  second->Step(golden.learning_rate, golden.max_norm).grad_norm);
      }
    });
  }
}

// A critic: its head drawn at random, trained to say 1, saved and loaded again.
TEST(TrainableModel, TrainsAScalarHeadAlikeAtEveryWorldSize) {
  std::vector<double> expected;
  for (int ranks : {1, 2}) {
    const std::string folder = FreshFolder("critic");
    std::vector<double> losses;
    RunRanks(ranks, [&](ProcessGroup& group) {
      TrainableModelOptions options = Fp32Options(ReadGolden("qwen2_tied"), 3, true);
      options.model.head = HeadKind::kScalar;
      options.model.initialize_missing_head = true;
      options.model.seed = 11;
      const PackedSequences batch =
          ranks == 1 ? Pack({kSequences[0], kSequences[1]}) : Pack({kSequences[group.rank()]});
      auto loss_of = [&](TrainableModel& model) {
        at::Tensor loss = at::tensor({model.ForwardBackward(batch,
                                                            [](const at::Tensor& hidden_TD, const at::Tensor& head_1D) {
                                                              return (hidden_TD.matmul(head_1D.t()) - 1).square().sum();
                                                            })},
                                     at::TensorOptions(at::kDouble));
        group.AllReduceSum(loss)->Wait();
        return loss.item<double>();
      };
      Ledger ledger;
      auto model = LoadOrDie(std::string(kTestdata) + "qwen2_tied", options, group, ledger);
      std::vector<double> mine_losses;
      for (int step = 0; step < 10; ++step) {
        mine_losses.push_back(loss_of(*model));
        model->Step(1e-3, 1);
      }
      auto saved = model->Save(folder);
      ASSERT_TRUE(saved.ok()) << saved.status();
      const double last = loss_of(*model);
      options.model.initialize_missing_head = false;
      auto again = LoadOrDie(folder, options, group, ledger);
      EXPECT_EQ(loss_of(*again), last);
      if (group.rank() == 0) losses = mine_losses;
    });
    EXPECT_LT(losses.back(), 0.8 * losses.front());
    if (expected.empty()) expected = losses;
    for (size_t step = 0; step < losses.size(); ++step) EXPECT_NEAR(losses[step] / expected[step], 1, 1e-4);
  }
}

// Every tensor of a folder, as stored.
std::map<std::string, std::pair<Dtype, std::vector<char>>> ReadFolder(const std::string& folder) {
  auto reader = CheckpointReader::Open(folder);
  EXPECT_TRUE(reader.ok()) << reader.status();
  std::map<std::string, std::pair<Dtype, std::vector<char>>> tensors;
  if (!reader.ok()) return tensors;
  for (const auto& [name, info] : (*reader)->tensors()) {
    std::vector<char> bytes(info.bytes);
    EXPECT_TRUE((*reader)->ReadRange(name, 0, info.numel(), bytes.data()).ok());
    tensors[name] = {info.dtype, bytes};
  }
  return tensors;
}

TEST(TrainableModel, WhatWasNotTrainedIsSavedAsItWasRead) {
  for (const char* name : {"llama", "qwen2_tied"}) {
    for (int stage : {0, 2, 3}) {
      const std::string folder = FreshFolder("unchanged");
      RunRanks(2, [&](ProcessGroup& group) {
        Ledger ledger;
        auto model =
            LoadOrDie(kTestdata + std::string(name), Fp32Options(ReadGolden(name), stage, true), group, ledger);
        auto bytes = model->Save(folder);
        ASSERT_TRUE(bytes.ok()) << bytes.status();
        int64_t on_disk = 0;
        for (const auto& file : fs::directory_iterator(folder)) on_disk += file.file_size();
        EXPECT_EQ(*bytes, on_disk);
      });
      EXPECT_EQ(ReadFolder(folder), ReadFolder(kTestdata + std::string(name)));
    }
  }
}

TEST(TrainableModel, SavedWeightsLoadAtAnotherWorldSizeBitForBit) {
  const Golden golden = ReadGolden("llama");
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::string first = FreshFolder("first"), second = FreshFolder("second");
    RunRanks(3, [&](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options = Fp32Options(golden, 3, true);
      options.model.compute_dtype = dtype;
      auto model = LoadOrDie(std::string(kTestdata) + "llama", options, group, ledger);
      Accumulate(*model, golden.sequences, 4);
      model->Step(golden.learning_rate, golden.max_norm);
      EXPECT_TRUE(model->Save(first).ok());
      EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
    });
    RunRanks(2, [&](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options = Fp32Options(golden, 2, true);
      options.model.compute_dtype = dtype;
      auto model = LoadOrDie(first, options, group, ledger);
      EXPECT_TRUE(model->Save(second).ok());
    });
    const auto saved = ReadFolder(first);
    EXPECT_EQ(saved, ReadFolder(second));
    EXPECT_EQ(saved.begin()->second.first, dtype == at::kFloat ? Dtype::kF32 : Dtype::kBF16);
    EXPECT_NE(saved, ReadFolder(std::string(kTestdata) + "llama"));
    const auto config = nlohmann::json::parse(std::ifstream(first + "/config.json"));
    EXPECT_EQ(config["torch_dtype"], dtype == at::kFloat ? "float32" : "bfloat16");
    EXPECT_EQ(config["architectures"][0], "LlamaForCausalLM");
  }
}

std::vector<float> ReadFloats(const std::string& folder, const std::string& name) {
  const auto tensors = ReadFolder(folder);
  const auto& [type, bytes] = tensors.at(name);
  EXPECT_EQ(type, Dtype::kF32);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(TrainableModel, SavesTheMovingAverageOfTheWeights) {
  const Golden golden = ReadGolden("llama");
  const std::string tensor = "model.layers.0.mlp.up_proj.weight";
  for (const auto& [ranks, shard_size, stage] : {std::tuple(1, 1, 3), {2, 2, 3}, {4, 2, 3}, {2, 2, 0}, {2, 2, 2}}) {
    std::vector<float> expected = ReadFloats(std::string(kTestdata) + "llama", tensor);
    const std::vector<float> original = expected;
    std::vector<std::string> folders;
    for (int i = 0; i < 5; ++i) folders.push_back(FreshFolder("average_" + std::to_string(i)));
    RunMesh(ranks, shard_size, [&, stage = stage](Mesh& mesh) {
      ProcessGroup& group = mesh.world();
      Ledger ledger;
      TrainableModelOptions options = Fp32Options(golden, stage, true);
      options.ema_decay = 0.75;
      auto model = *TrainableModel::Load(std::string(kTestdata) + "llama", options, &mesh, &ledger);
      EXPECT_GT(ledger.current(MemoryCategory::kOptimizer, MemoryTier::kHost), 0);
      for (int step = 0; step < 4; ++step) {
        // A step that is skipped does not count.
        Accumulate(*model, golden.sequences, 4);
        if (step == 2) {
          const PackedSequences batch = Pack(golden.sequences);
          model->ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor&) {
            return hidden_TD.sum() * std::numeric_limits<double>::infinity();
          });
        }
        EXPECT_EQ(model->Step(golden.learning_rate, golden.max_norm).skipped, step == 2);
        ASSERT_TRUE(model->Save(folders[step]).ok());
        if (group.rank() == 0 && step != 2) {
          const std::vector<float> weights = ReadFloats(folders[step], tensor);
          for (size_t i = 0; i < weights.size(); ++i) expected[i] = 0.75f * expected[i] + 0.25f * weights[i];
        }
      }
      const std::string& folder = folders[4];
      auto bytes = model->SaveAverage(folder);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_GT(*bytes, 0);
      EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
      if (group.rank() == 0) {
        EXPECT_THAT(ReadFloats(folder, tensor), testing::Pointwise(testing::FloatNear(1e-6), expected));
        EXPECT_NE(ReadFloats(folder, tensor), original);
        const auto config = nlohmann::json::parse(std::ifstream(folder + "/config.json"));
        EXPECT_EQ(config["architectures"][0], "LlamaForCausalLM");
      }
    });
  }
}

TEST(TrainableModel, RefusesModesThatCouldHaveNoEffect) {
  const auto error_of = [](const std::function<void(TrainableModelOptions&)>& change) {
    std::string error;
    RunRanks(1, [&](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options;
      change(options);
      const auto model = TrainableModel::Load(std::string(kTestdata) + "llama", options, &group, &ledger);
      EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
      error = std::string(model.status().message());
    });
    return error;
  };
  EXPECT_THAT(error_of([](auto& o) { o.activation_offload = true, o.gradient_checkpointing = false; }),
              testing::HasSubstr("gradient_checkpointing"));
  EXPECT_THAT(error_of([](auto& o) { o.no_sync = true, o.model.zero_stage = 0; }), testing::HasSubstr("zero_stage 0"));
  EXPECT_THAT(error_of([](auto& o) { o.model.adam_offload = true, o.model.zero_stage = 0; }),
              testing::HasSubstr("zero_stage 2 or 3"));
  EXPECT_THAT(error_of([](auto& o) { o.model.offload_param = true; }), testing::HasSubstr("adam_offload"));
  EXPECT_THAT(error_of([](auto& o) {
                o.model.adam_offload = o.model.offload_param = true;
                o.model.zero_stage = 2;
              }),
              testing::HasSubstr("zero_stage 3"));
  EXPECT_THAT(error_of([](auto& o) { o.ema_decay = 1; }), testing::HasSubstr("below 1"));
}

// Two moments and a master of 4 bytes a parameter do not fit; the same training with them in host memory does.
TEST(TrainableModel, ADeviceWithoutRoomForTheOptimizerTrainsWithOffload) {
  const std::string folder = FreshFolder("offload");
  ASSERT_TRUE(WriteRandomModel(DeepConfig(), HeadKind::kVocabulary, 3, Dtype::kF32, folder).ok());
  for (int stage : {2, 3}) {
    RunRanks(2, [&](ProcessGroup& group) {
      TrainableModelOptions options;
      options.model.zero_stage = stage;
      std::vector<double> expected;
      const auto train = [&](Ledger& ledger, TrainableModel& model) {
        std::vector<double> losses;
        for (int step = 0; step < 3; ++step) {
          losses.push_back(Accumulate(model, kSequences, 1));
          model.Step(1e-3, 1);
        }
        EXPECT_EQ(ledger.current(MemoryCategory::kCommunication, MemoryTier::kHost), 0);
        return losses;
      };
      int64_t budget;
      {
        Ledger ledger;
        auto model = LoadOrDie(folder, options, group, ledger);
        budget = ledger.current(MemoryCategory::kOptimizer) - 1;
        expected = train(ledger, *model);
      }
      {
        Ledger ledger;
        ledger.SetBudget(MemoryTier::kDevice, budget);
        const auto model = TrainableModel::Load(folder, options, &group, &ledger);
        EXPECT_EQ(model.status().code(), absl::StatusCode::kResourceExhausted);
        EXPECT_THAT(std::string(model.status().message()), testing::HasSubstr("offload"));
      }
      options.model.adam_offload = true;
      Ledger ledger;
      ledger.SetBudget(MemoryTier::kDevice, budget);
      auto model = LoadOrDie(folder, options, group, ledger);
      EXPECT_EQ(train(ledger, *model), expected);
      EXPECT_EQ(ledger.current(MemoryCategory::kOptimizer), 0);
      EXPECT_EQ(ledger.current(MemoryCategory::kGradients), 0);
      EXPECT_GT(ledger.current(MemoryCategory::kOptimizer, MemoryTier::kHost), budget);
      // The parameters in bf16: all of them at stage 2, half of them at stage 3.
      EXPECT_LT(ledger.current(MemoryCategory::kParameters),
                model->model().layout().numel() * (stage == 2 ? 2.2 : 1.1));
    });
  }
}

TEST(TrainableModel, ParametersAndInputsOfBlocksWaitInHostMemory) {
  const std::string folder = FreshFolder("offload_param");
  ASSERT_TRUE(WriteRandomModel(DeepConfig(), HeadKind::kVocabulary, 3, Dtype::kF32, folder).ok());
  RunRanks(2, [&](ProcessGroup& group) {
    TrainableModelOptions options;
    std::vector<double> losses;
    std::vector<int64_t> activations;
    for (bool offload : {false, true}) {
      options.model.adam_offload = options.model.offload_param = options.activation_offload = offload;
      Ledger ledger;
      auto model = LoadOrDie(folder, options, group, ledger);
      losses.push_back(Accumulate(*model, {std::vector<int64_t>(64, 5), std::vector<int64_t>(64, 7)}, 1));
      model->Step(1e-3, 1);
      losses.push_back(Accumulate(*model, {std::vector<int64_t>(64, 5), std::vector<int64_t>(64, 7)}, 1));
      activations.push_back(ledger.peak(MemoryCategory::kActivations));
      // Sixteen blocks, 64 tokens of 48 numbers in bf16.
      EXPECT_EQ(ledger.peak(MemoryCategory::kActivations, MemoryTier::kHost), offload ? 16 * 64 * 48 * 2 : 0);
      EXPECT_EQ(ledger.current(MemoryCategory::kParameters) == 0, offload);
    }
    EXPECT_EQ(losses[0], losses[2]);
    EXPECT_EQ(losses[1], losses[3]);
    EXPECT_LE(activations[1], activations[0] - 12 * 64 * 48 * 2);
  });
}

TEST(TrainableModel, RefusesToSaveOverAFolderOnEveryRank) {
  const std::string folder = FreshFolder("taken");
  fs::create_directories(folder);
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = LoadOrDie(std::string(kTestdata) + "llama", Fp32Options(ReadGolden("llama"), 3, true), group, ledger);
    const absl::Status status = model->Save(folder).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(folder));
  });
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(TrainableModel, ASaveThatFailsLeavesNothingUnderTheName) {
  const std::string parent = FreshFolder("parent");
  std::ofstream(parent) << "a file where a folder should be";
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = LoadOrDie(std::string(kTestdata) + "llama", Fp32Options(ReadGolden("llama"), 3, true), group, ledger);
    const absl::Status status = model->Save(parent + "/model").status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(parent));
    EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
    // The model trains on.
    Accumulate(*model, kSequences, 2);
    EXPECT_FALSE(model->Step(1e-3, 1).skipped);
  });
  EXPECT_TRUE(fs::is_regular_file(parent));
}

}  // namespace
}  // namespace quartet

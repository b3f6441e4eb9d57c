// Whatever comes together in training, at most two groups of parameters are gathered at any moment, none after a step.
// Elsewhere, weights that were never given back (hooks that counted the forward pass without gradient, or the one of
// activation checkpointing, as a use to come) made deep models run out of memory on however many machines.
#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/comm/testing/rank_threads.h"
#include "core/model/initialize.h"
#include "core/zero/sharded/flat_layout.h"
#include "core/zero/trainable_model.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

// With the embedding and the head, five groups.
constexpr int64_t kDepth = 3;

ModelConfig Config(int64_t blocks) {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 97;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = blocks;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 12;
  config.max_position_embeddings = 128;
  return config;
}

// The folder of a random model, made once a process. Called by ranks.
std::string Folder(int64_t blocks) {
  const fs::path folder = fs::path(testing::TempDir()) / absl::StrCat("gather_matrix_test_", blocks);
  static std::mutex* mutex = new std::mutex;
  static std::vector<fs::path>* made = new std::vector<fs::path>;
  const std::lock_guard lock(*mutex);
  if (std::find(made->begin(), made->end(), folder) == made->end()) {
    fs::remove_all(folder);
    absl::Status status = WriteRandomModel(Config(blocks), HeadKind::kVocabulary, 3, Dtype::kF32, folder.string());
    EXPECT_TRUE(status.ok()) << status;
    made->push_back(folder);
  }
  return folder.string();
}

struct InjectedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Accumulation { kReduced, kWhole };
enum class Place { kDevice, kHost };

struct Arrangement {
  int ranks;
  int shard_size;
  int stage;
  bool checkpointing;
  Accumulation accumulation;
  Place place;
};

std::ostream& operator<<(std::ostream& out, const Arrangement& a) {
  return out << a.ranks << "_ranks_of_" << a.shard_size << "_stage_" << a.stage
             << (a.checkpointing ? "_checkpointing" : "_graphs")
             << (a.accumulation == Accumulation::kWhole ? "_no_sync" : "")
             << (a.place == Place::kHost ? "_offload" : "");
}

TrainableModelOptions OptionsOf(const Arrangement& a) {
  TrainableModelOptions options;
  options.model.zero_stage = a.stage;
  options.model.compute_dtype = at::kDouble;  // for results that do not depend on the order of additions
  options.gradient_checkpointing = a.checkpointing;
  options.no_sync = a.accumulation == Accumulation::kWhole;
  options.model.adam_offload = a.place == Place::kHost;
  options.model.offload_param = a.place == Place::kHost && a.stage == 3;
  options.activation_offload = a.place == Place::kHost && a.checkpointing;
  return options;
}

void RunMesh(int ranks, int shard_size, const std::function<void(Mesh&)>& body) {
  RunRanksOfStore(ranks, [&](KeyValueStore* store, const ProcessGroupOptions& options) {
    auto mesh = MakeMesh(store, options, shard_size);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    body(**mesh);
  });
}

std::unique_ptr<TrainableModel> LoadOrDie(int64_t blocks, const TrainableModelOptions& options, Mesh& mesh,
                                          Ledger& ledger) {
  auto model = TrainableModel::Load(Folder(blocks), options, &mesh, &ledger);
  if (!model.ok()) throw std::runtime_error(model.status().ToString());
  return *std::move(model);
}

// Bytes of the two largest groups, gathered.
int64_t TwoLargestGroups(ShardedModel& model, Mesh& mesh) {
  std::vector<int64_t> bytes;
  const auto element = static_cast<int64_t>(c10::elementSize(model.options().compute_dtype));
  for (const ParameterGroup& group : model.layout().groups) {
    bytes.push_back(MakeFlatGroup(group, element, mesh.shard().size(), mesh.replica().size()).total * element);
  }
  std::sort(bytes.rbegin(), bytes.rend());
  return bytes[0] + bytes[1];
}

// What is wrong with what has been gathered since the ledger's peaks were reset; "" if nothing is.
std::string Violation(const Ledger& ledger, int64_t limit) {
  const int64_t peak = ledger.peak(MemoryCategory::kGathered), now = ledger.current(MemoryCategory::kGathered);
  if (peak > limit) return absl::StrCat(peak, " bytes were gathered at once; two groups have ", limit);
  if (now != 0) return absl::StrCat(now, " bytes are still gathered");
  return "";
}

const std::vector<std::vector<int64_t>> kSequences = {
    {1, 2, 3, 4, 5, 6}, {7, 8, 9}, {10, 11, 12, 13}, {14, 15}, {16, 17, 18, 19, 20}};

PackedSequences Pack(const std::vector<int64_t>& sequence) {
  PackedSequences batch;
  batch.ids_T = at::tensor(sequence, at::TensorOptions(at::kLong));
  if (!sequence.empty()) batch.cu_seqlens = {0, static_cast<int64_t>(sequence.size())};
  return batch;
}

// Which of the model's outputs a loss depends on.
enum class Uses { kBoth, kHiddenOnly, kHeadOnly, kNothing };

at::Tensor Loss(Uses uses, const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
  switch (uses) {
    case Uses::kBoth:
      return -at::log_softmax(hidden_TD.matmul(head_VD.t()), -1).select(1, 5).sum();
    case Uses::kHiddenOnly:  // the head has no part in it
      return hidden_TD.square().sum();
    case Uses::kHeadOnly:  // all before the head is frozen
      return -at::log_softmax(hidden_TD.detach().matmul(head_VD.t()), -1).select(1, 5).sum();
    case Uses::kNothing:
      return at::tensor({1.0f}).sum();
  }
  throw std::logic_error("unreachable");
}

// This rank's sequences, one a micro-batch; ranks that have fewer end with an empty one.
std::vector<PackedSequences> MicroBatches(const ProcessGroup& world) {
  std::vector<PackedSequences> batches;
  const size_t size = world.size();
  for (size_t first = 0; first < kSequences.size(); first += size) {
    const size_t mine = first + world.rank();
    batches.push_back(Pack(mine < kSequences.size() ? kSequences[mine] : std::vector<int64_t>{}));
  }
  return batches;
}

double Accumulate(TrainableModel& model, ProcessGroup& world, Uses uses) {
  double loss = 0;
  for (const PackedSequences& batch : MicroBatches(world)) {
    loss += model.ForwardBackward(
        batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) { return Loss(uses, hidden_TD, head_VD); });
  }
  return loss;
}

// What the model's steps gave, in order: losses over all ranks and norms of gradients.
std::vector<double> Live(const Arrangement& a, Mesh& mesh) {
  Ledger ledger;
  auto model = LoadOrDie(kDepth, OptionsOf(a), mesh, ledger);
  const int64_t limit = TwoLargestGroups(model->model(), mesh);
  std::vector<double> results;
  const auto check = [&](const std::string& after) {
    EXPECT_EQ(Violation(ledger, limit), "") << "after " << after;
    EXPECT_EQ(ledger.current(MemoryCategory::kCommunication), 0) << "after " << after;
    EXPECT_EQ(ledger.current(MemoryCategory::kActivations), 0) << "after " << after;
    EXPECT_EQ(ledger.current(MemoryCategory::kActivations, MemoryTier::kHost), 0) << "after " << after;
    EXPECT_EQ(ledger.current(MemoryCategory::kLogits), 0) << "after " << after;
  };
  const auto forward_without_gradient = [&] {
    for (const PackedSequences& batch : MicroBatches(mesh.world())) {
      model->model().Forward(batch, [](const at::Tensor&, const at::Tensor&) {});
    }
    check("a forward pass without gradient");
  };
  const auto step = [&](Uses uses) {
    at::Tensor loss = at::tensor({Accumulate(*model, mesh.world(), uses)}, at::TensorOptions(at::kDouble));
    check("the backward passes");
    mesh.world().AllReduceSum(loss)->Wait();
    results.push_back(loss.item<double>());
    results.push_back(model->Step(1e-2, 1).grad_norm);
    check("a step");
  };

  forward_without_gradient();
  step(Uses::kBoth);
  forward_without_gradient();
  step(Uses::kHiddenOnly);
  step(Uses::kHeadOnly);
  step(Uses::kNothing);
  step(Uses::kBoth);

  forward_without_gradient();
  step(Uses::kBoth);
  step(Uses::kBoth);
  return results;
}

class GatherMatrix : public testing::TestWithParam<Arrangement> {};

std::vector<Arrangement> Matrix() {
  std::vector<Arrangement> matrix;
  // One rank, shards of unequal fill, and replicas of shards.
  for (const auto& [ranks, shard_size] : {std::pair(1, 1), {3, 3}, {4, 2}}) {
    for (int stage : {0, 2, 3}) {
      for (bool checkpointing : {true, false}) {
        for (Accumulation accumulation : {Accumulation::kReduced, Accumulation::kWhole}) {
          for (Place place : {Place::kDevice, Place::kHost}) {
            // What the model refuses.
            if (stage == 0 && (accumulation == Accumulation::kWhole || place == Place::kHost || shard_size < ranks)) {
              continue;
            }
            matrix.push_back({ranks, shard_size, stage, checkpointing, accumulation, place});
          }
        }
      }
    }
  }
  return matrix;
}

INSTANTIATE_TEST_SUITE_P(All, GatherMatrix, testing::ValuesIn(Matrix()),
                         [](const auto& a) { return testing::PrintToString(a.param); });

TEST_P(GatherMatrix, GathersTwoGroupsAtMostAndNoneBetweenSteps) {
  static const std::vector<double>* const expected = [] {
    auto* results = new std::vector<double>;
    RunMesh(1, 1, [&](Mesh& mesh) { *results = Live({1, 1, 0, false, Accumulation::kReduced, Place::kDevice}, mesh); });
    return results;
  }();
  const Arrangement& a = GetParam();
  RunMesh(a.ranks, a.shard_size, [&](Mesh& mesh) {
    const std::vector<double> results = Live(a, mesh);
    ASSERT_EQ(results.size(), expected->size());
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_NEAR(results[i], (*expected)[i], 1e-6 * std::abs((*expected)[i])) << "result " << i;
    }
  });
}

// The checks above would see a group that is not given back.
TEST(GatherMatrix, SeesAGroupThatLeaks) {
  for (bool checkpointing : {true, false}) {
    RunMesh(2, 2, [&](Mesh& mesh) {
      Ledger ledger;
      auto model =
          LoadOrDie(kDepth, OptionsOf({2, 2, 3, checkpointing, Accumulation::kReduced, Place::kDevice}), mesh, ledger);
      const int64_t limit = TwoLargestGroups(model->model(), mesh);
      std::vector<GatheredGroup> leaked;
      const auto step = [&](int group) {
        model->ForwardBackward(Pack(kSequences[0]), [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
          if (group >= 0) leaked.push_back(model->model().Gather(group));
          return Loss(Uses::kBoth, hidden_TD, head_VD);
        });
        model->Step(1e-2, 1);
      };
      step(-1);
      EXPECT_EQ(Violation(ledger, limit), "");
      step(/*block 0*/ 1);
      EXPECT_THAT(Violation(ledger, limit), testing::HasSubstr("bytes were gathered at once"));
      leaked.clear();
      EXPECT_THAT(Violation(ledger, limit), testing::HasSubstr("bytes were gathered at once"));
      // One that is gathered alone is seen as long as it stays.
      ledger.ResetPeaks();
      leaked.push_back(model->model().Gather(0));
      EXPECT_THAT(Violation(ledger, limit), testing::HasSubstr("bytes are still gathered"));
      leaked.clear();
      EXPECT_EQ(Violation(ledger, limit), "");
      step(-1);
      EXPECT_EQ(Violation(ledger, limit), "");
    });
  }
}

TEST(GatherMatrix, TheGatheredPeakIsTheSameForEveryDepth) {
  for (bool checkpointing : {true, false}) {
    RunMesh(2, 2, [&](Mesh& mesh) {
      std::vector<int64_t> peaks;
      for (int blocks : {4, 16, 64}) {
        Ledger ledger;
        auto model = LoadOrDie(blocks, OptionsOf({2, 2, 3, checkpointing, Accumulation::kReduced, Place::kDevice}),
                               mesh, ledger);
        Accumulate(*model, mesh.world(), Uses::kBoth);
        model->Step(1e-2, 1);
        peaks.push_back(ledger.peak(MemoryCategory::kGathered));
      }
      EXPECT_GT(peaks[0], 0);
      EXPECT_THAT(peaks, testing::Each(peaks[0]));
    });
  }
}

// One rank that leaves takes the others out of the collective they wait in, by its name.
TEST(GatherMatrix, AnExceptionOnOneRankEndsTheGroupWithAnErrorThatNamesIt) {
  for (const auto& [ranks, shard_size] : {std::pair(2, 2), {3, 3}, {4, 2}}) {
    for (int stage : {2, 3}) {
      RunMesh(ranks, shard_size, [&, ranks = ranks, shard_size = shard_size](Mesh& mesh) {
        Ledger ledger;
        TrainableModelOptions options;
        options.model.zero_stage = stage;
        auto model = LoadOrDie(kDepth, options, mesh, ledger);
        std::string error;
        try {
          model->ForwardBackward(Pack(kSequences[0]), [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
            if (mesh.world().rank() == 1) throw InjectedError("this rank alone");
            return Loss(Uses::kBoth, hidden_TD.to(at::kFloat), head_VD.to(at::kFloat));
          });
          model->Step(1e-2, 1);
        } catch (const std::exception& exception) {
          error = exception.what();
        }
        if (mesh.world().rank() == 1) {
          EXPECT_EQ(error, "this rank alone");
        } else if (mesh.world().rank() == 2 && mesh.replica().size() > 1) {
          // Shares no group with rank 1 but the world: rank 0 leaves it first.
          EXPECT_THAT(error, testing::ContainsRegex("rank [01]"));
        } else {
          EXPECT_THAT(error, testing::HasSubstr("rank 1"));
        }
      });
    }
  }
}

}  // namespace
}  // namespace quartet

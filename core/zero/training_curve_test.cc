// Training against transformers with torch's optimizers, in every arrangement.

#include <ATen/TensorOperators.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/comm/testing/rank_threads.h"
#include "core/zero/testing/golden_run.h"
#include "core/zero/trainable_model.h"

namespace quartet {
namespace {

constexpr char kQwen[] = "core/zero/testdata/qwen2_tied";

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

// One rank takes all steps of the curve; what several do together is the same in each step.
Curve Train(const GoldenRun& golden, const Arrangement& arrangement) {
  Curve curve;
  const size_t steps = arrangement.ranks == 1 ? golden.losses.size() : 8;
  RunMesh(arrangement.ranks, arrangement.shard_size, [&](Mesh& mesh) {
    ProcessGroup& group = mesh.world();
    Ledger ledger;
    TrainableModelOptions options = golden.Fp32(arrangement.stage, arrangement.checkpointing);
    options.model.adam_offload = arrangement.adam_offload;
    options.model.offload_param = arrangement.offload_param;
    options.activation_offload = arrangement.activation_offload;
    options.no_sync = arrangement.no_sync;
    auto loaded = TrainableModel::Load(golden.folder, options, &mesh, &ledger);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    auto model = *std::move(loaded);
    for (size_t step = 0; step < steps; ++step) {
      const double loss = Accumulate(*model, golden.sequences, arrangement.micro);
      EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
      const StepResult result = model->Step(golden.learning_rate, golden.max_norm);
      EXPECT_FALSE(result.skipped);
      if (group.rank() == 0) {
        curve.losses.push_back(loss);
        curve.grad_norms.push_back(result.grad_norm);
      }
    }
    EXPECT_EQ(model->steps(), static_cast<int64_t>(steps));
    EXPECT_EQ(ledger.current(MemoryCategory::kCommunication), 0);
    EXPECT_EQ(ledger.current(MemoryCategory::kActivations), 0);
  });
  return curve;
}

class Training : public testing::TestWithParam<std::tuple<std::string, Arrangement>> {};

std::string NameOf(const testing::TestParamInfo<Training::ParamType>& info) {
  const auto& [model, arrangement] = info.param;
  return absl::StrCat(model, "_", arrangement.ranks, arrangement.ranks == 1 ? "_rank_" : "_ranks_", info.index);
}

INSTANTIATE_TEST_SUITE_P(Arrangements, Training,
                         testing::Combine(testing::Values("llama", "qwen2_tied"),
                                          testing::Values(Arrangement{1, 3, true, 8}, Arrangement{1, 3, true, 3},
                                                          Arrangement{1, 3, false, 8}, Arrangement{2, 3, true, 4},
                                                          Arrangement{3, 3, true, 1}, Arrangement{3, 3, false, 2},
                                                          Arrangement{1, 0, true, 8}, Arrangement{2, 0, true, 4},
                                                          Arrangement{3, 0, false, 1}, Arrangement{1, 2, true, 8},
                                                          Arrangement{2, 2, true, 4}, Arrangement{3, 2, true, 1},
                                                          Arrangement{2, 2, false, 3})),
                         NameOf);

// Blocks with multipliers, and with norms in other places.
INSTANTIATE_TEST_SUITE_P(Families, Training,
                         testing::Combine(testing::Values("granite", "olmo2"),
                                          testing::Values(Arrangement{2, 3, true, 4}, Arrangement{1, 0, false, 8})),
                         NameOf);

// Of a model that stays as it is: divided, offloaded, of several replicas, with graphs that refer to memory that is
// given back and filled again.
INSTANTIATE_TEST_SUITE_P(
    Adapters, Training,
    testing::Combine(
        testing::Values("llama_lora", "qwen2_tied_lora", "olmo2_lora"),
        testing::Values(Arrangement{1, 0, true, 8}, Arrangement{1, 0, false, 8}, Arrangement{1, 2, true, 3},
                        Arrangement{1, 3, true, 3}, Arrangement{1, 3, false, 8}, Arrangement{2, 0, true, 4},
                        Arrangement{2, 2, false, 3}, Arrangement{2, 3, true, 4}, Arrangement{2, 3, false, 2},
                        Arrangement{3, 2, true, 1}, Arrangement{3, 3, true, 1}, Arrangement{3, 3, false, 2},
                        Arrangement{.ranks = 4, .stage = 3, .checkpointing = false, .micro = 1, .shard_size = 2},
                        Arrangement{.ranks = 3, .stage = 3, .checkpointing = true, .micro = 2, .shard_size = 1},
                        Arrangement{.ranks = 2, .stage = 2, .checkpointing = false, .micro = 2, .adam_offload = true},
                        Arrangement{
                            .ranks = 2, .stage = 3, .checkpointing = true, .micro = 2, .activation_offload = true},
                        Arrangement{.ranks = 1,
                                    .stage = 3,
                                    .checkpointing = false,
                                    .micro = 2,
                                    .adam_offload = true,
                                    .offload_param = true},
                        Arrangement{.ranks = 4,
                                    .stage = 3,
                                    .checkpointing = true,
                                    .micro = 1,
                                    .shard_size = 2,
                                    .adam_offload = true,
                                    .offload_param = true,
                                    .activation_offload = true,
                                    .no_sync = true})),
    NameOf);

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
                        .no_sync = true})),
    NameOf);

void ExpectGolden(const Curve& curve, const GoldenRun& golden) {
  ASSERT_GE(curve.losses.size(), 8u);
  EXPECT_LT(curve.losses.back(), 0.95 * curve.losses.front());
  for (size_t step = 0; step < curve.losses.size(); ++step) {
    EXPECT_NEAR(curve.losses[step] / golden.losses[step], 1, 1e-5) << "step " << step;
    EXPECT_NEAR(curve.grad_norms[step] / golden.grad_norms[step], 1, 1e-4) << "step " << step;
  }
}

// Three ranks share eight sequences: one goes without in the last micro-batch.
TEST_P(Training, FollowsTheLossCurveOfTransformersWithTorchsAdamW) {
  const auto& [name, arrangement] = GetParam();
  const GoldenRun golden = ReadGoldenRun(name);
  ExpectGolden(Train(golden, arrangement), golden);
}

class TrainingBySgd : public testing::TestWithParam<std::tuple<std::string, std::string, Arrangement>> {};

// What differs between optimizers is one element's update, where weights and state are: few arrangements have it all.
INSTANTIATE_TEST_SUITE_P(Arrangements, TrainingBySgd,
                         testing::Combine(testing::Values("llama", "qwen2_tied"),
                                          testing::Values("sgd", "sgd_without_momentum"),
                                          testing::Values(Arrangement{1, 3, true, 8}, Arrangement{3, 3, true, 1},
                                                          Arrangement{2, 0, true, 4}, Arrangement{3, 2, false, 1},
                                                          Arrangement{.ranks = 4,
                                                                      .stage = 3,
                                                                      .checkpointing = true,
                                                                      .micro = 1,
                                                                      .shard_size = 2,
                                                                      .adam_offload = true,
                                                                      .offload_param = true,
                                                                      .no_sync = true})));

TEST_P(TrainingBySgd, FollowsTheLossCurveOfTransformersWithTorchsSgd) {
  const auto& [name, optimizer, arrangement] = GetParam();
  const GoldenRun golden = ReadGoldenRun(name, optimizer);
  ExpectGolden(Train(golden, arrangement), golden);
}

TEST(TrainableModel, KeepsTheAverageOfTheWeightsThatTorchKeeps) {
  for (const char* name : {"llama", "qwen2_tied"}) {
    for (const char* optimizer : {"adam", "sgd", "sgd_without_momentum"}) {
      SCOPED_TRACE(testing::Message() << name << ", " << optimizer);
      const GoldenRun golden = ReadGoldenRun(name, optimizer);
      const std::string folder = FreshFolder("torchs_average");
      RunRanks(2, [&](ProcessGroup& group) {
        Ledger ledger;
        TrainableModelOptions options = golden.Fp32(3, true);
        options.ema_decay = golden.trainer.ema_decay();
        auto model = LoadOrDie(golden.folder, options, group, ledger);
        for (size_t step = 0; step < golden.losses.size(); ++step) {
          Accumulate(*model, golden.sequences, 4);
          model->Step(golden.learning_rate, golden.max_norm);
        }
        ASSERT_TRUE(model->SaveAverage(folder).ok());
        auto average = LoadOrDie(folder, golden.Fp32(3, true), group, ledger);
        EXPECT_NEAR(Accumulate(*average, golden.sequences, 4) / golden.average_loss, 1, 1e-5);
      });
    }
  }
}

TEST(TrainableModel, TrainsInBf16CloseToFp32) {
  const GoldenRun golden = ReadGoldenRun("llama");
  for (int stage : {0, 2, 3}) {
    RunRanks(2, [&](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options = golden.Fp32(stage, true);
      options.model.compute_dtype = at::kBFloat16;
      auto model = LoadOrDie(kLlama, options, group, ledger);
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
  const GoldenRun golden = ReadGoldenRun("qwen2_tied");
  std::vector<at::Tensor> expected;
  for (const auto& [ranks, micro, checkpointing] :
       {std::tuple(1, 8, true), {1, 1, false}, {1, 3, true}, {2, 2, true}, {3, 1, false}}) {
    RunRanks(ranks, [&, ranks = ranks, micro = micro, checkpointing = checkpointing](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options = golden.Fp32(3, checkpointing);
      options.model.compute_dtype = at::kDouble;
      auto model = LoadOrDie(kQwen, options, group, ledger);
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

// A critic: its head drawn at random, trained to say 1, saved and loaded again.
TEST(TrainableModel, TrainsAScalarHeadAlikeAtEveryWorldSize) {
  std::vector<double> expected;
  for (int ranks : {1, 2}) {
    const std::string folder = FreshFolder("critic");
    std::vector<double> losses;
    RunRanks(ranks, [&](ProcessGroup& group) {
      TrainableModelOptions options = ReadGoldenRun("qwen2_tied").Fp32(3, true);
      options.model.head = HeadKind::kScalar;
      options.model.initialize_missing_head = true;
      options.model.seed = 11;
      const PackedSequences batch =
          ranks == 1 ? PackIds({kFewSequences[0], kFewSequences[1]}) : PackIds({kFewSequences[group.rank()]});
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
      auto model = LoadOrDie(kQwen, options, group, ledger);
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

}  // namespace
}  // namespace quartet

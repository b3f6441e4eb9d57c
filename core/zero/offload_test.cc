// What is where while a model trains: gathered groups, and what offload keeps in host memory.

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/testing/rank_threads.h"
#include "core/model/initialize.h"
#include "core/zero/testing/golden_run.h"
#include "core/zero/trainable_model.h"

namespace quartet {
namespace {

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
        Accumulate(*model, kFewSequences, 1);
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
          losses.push_back(Accumulate(model, kFewSequences, 1));
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

// Also where gradients are added up whole, and where no device is apart from the host.
TEST(TrainableModel, LearnsTheSameWhereItsStateWaitsInHostMemoryBetweenSteps) {
  const std::string folder = FreshFolder("offload_state");
  ASSERT_TRUE(WriteRandomModel(DeepConfig(), HeadKind::kVocabulary, 3, Dtype::kF32, folder).ok());
  for (const auto& [stage, no_sync] : {std::pair(0, false), std::pair(2, true), std::pair(3, false)}) {
    SCOPED_TRACE(testing::Message() << "stage " << stage);
    RunRanks(2, [&, stage = stage, no_sync = no_sync](ProcessGroup& group) {
      TrainableModelOptions options;
      options.model.zero_stage = stage;
      options.no_sync = no_sync;
      options.model.device = TestDevice();
      std::vector<std::vector<double>> losses(2);
      std::vector<std::vector<at::Tensor>> states(2);
      for (const bool offload : {false, true}) {
        Ledger ledger;
        options.begins_offloaded = offload;
        auto model = LoadOrDie(folder, options, group, ledger);
        EXPECT_EQ(ledger.peak(MemoryCategory::kOptimizer) == 0, offload);
        EXPECT_EQ(ledger.peak(MemoryCategory::kGradients) == 0, offload);
        for (int step = 0; step < 3; ++step) {
          losses[offload].push_back(Accumulate(*model, kFewSequences, 1));
          model->Step(1e-3, 1);
          if (!offload) continue;
          const int64_t optimizer = ledger.current(MemoryCategory::kOptimizer);
          EXPECT_GT(optimizer, 0);
          model->OffloadState();
          model->OffloadState();  // as it is
          EXPECT_EQ(ledger.current(MemoryCategory::kOptimizer), 0);
          EXPECT_EQ(ledger.current(MemoryCategory::kGradients), 0);
          EXPECT_EQ(ledger.current(MemoryCategory::kOptimizer, MemoryTier::kHost), optimizer);
          EXPECT_TRUE(model->model().Gather(0, -1).tensors()[0].defined()) << "what forwards need is there";
        }
        for (int g = 0; g < static_cast<int>(model->trained().layout().groups.size()); ++g) {
          for (const NamedState& part : model->state(g)) states[offload].push_back(part.values.to(at::kCPU).clone());
        }
      }
      EXPECT_EQ(losses[0], losses[1]);
      ASSERT_EQ(states[0].size(), states[1].size());
      for (size_t i = 0; i < states[0].size(); ++i) EXPECT_TRUE(at::equal(states[0][i], states[1][i])) << i;
    });
  }
}

}  // namespace
}  // namespace quartet

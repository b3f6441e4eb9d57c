#include "core/zero/trainable_model.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/comm/testing/rank_threads.h"
#include "core/zero/testing/golden_run.h"

namespace quartet {
namespace {

TEST(TrainableModel, ALossThatDoesNotDependOnTheModelGivesAZeroGradient) {
  const GoldenRun golden = ReadGoldenRun("llama");
  RunRanks(1, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = LoadOrDie(kLlama, golden.Fp32(3, true), group, ledger);
    EXPECT_EQ(model->ForwardBackward(PackIds(golden.sequences),
                                     [](const at::Tensor&, const at::Tensor&) { return at::tensor({2.5f}).sum(); }),
              2.5);
    EXPECT_EQ(model->Step(1e-3, 1).grad_norm, 0);
  });
}

TEST(TrainableModel, StateThatIsCopiedTrainsOnToTheBit) {
  const GoldenRun golden = ReadGoldenRun("llama");
  for (int stage : {0, 2, 3}) {
    RunRanks(2, [&](ProcessGroup& group) {
      Ledger ledger;
      const TrainableModelOptions options = golden.Fp32(stage, true);
      auto first = LoadOrDie(kLlama, options, group, ledger);
      for (int step = 0; step < 3; ++step) {
        Accumulate(*first, golden.sequences, 4);
        first->Step(golden.learning_rate, golden.max_norm);
      }
      auto second = LoadOrDie(kLlama, options, group, ledger);
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

TEST(TrainableModel, RefusesModesThatCouldHaveNoEffect) {
  const auto error_of = [](const std::function<void(TrainableModelOptions&)>& change) {
    std::string error;
    RunRanks(1, [&](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options;
      change(options);
      const auto model = TrainableModel::Load(kLlama, options, &group, &ledger);
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

}  // namespace
}  // namespace quartet

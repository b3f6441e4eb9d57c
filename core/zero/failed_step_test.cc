// Steps that fail, and steps that are skipped.

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "core/base/fail_point.h"
#include "core/comm/testing/rank_threads.h"
#include "core/zero/testing/golden_run.h"
#include "core/zero/trainable_model.h"

namespace quartet {
namespace {

struct Mode {
  int stage = 3;
  bool checkpointing = true;
  at::ScalarType dtype = at::kFloat;
  bool offload = false;  // optimizer, inputs of blocks
  double ema_decay = 0;
  const char* optimizer = "adam";
};

std::ostream& operator<<(std::ostream& out, const Mode& mode) {
  return out << "stage " << mode.stage << ", checkpointing " << mode.checkpointing << ", " << mode.dtype
             << (mode.offload ? ", offload" : "") << (mode.ema_decay > 0 ? ", average" : "") << ", " << mode.optimizer;
}

class FailedStep : public ::testing::TestWithParam<Mode> {
 protected:
  std::unique_ptr<TrainableModel> Load(ProcessGroup& group, Ledger& ledger) const {
    TrainableModelOptions options = golden_.Fp32(GetParam().stage, GetParam().checkpointing);
    options.model.compute_dtype = GetParam().dtype;
    options.model.adam_offload = options.activation_offload = GetParam().offload;
    options.ema_decay = GetParam().ema_decay;
    return LoadOrDie(golden_.folder, options, group, ledger);
  }

  // Two micro-batches a rank.
  void TakeStep(TrainableModel& model) const {
    const int rank = model.model().process_group().rank();
    for (const PackedSequences& batch : {batches_[2 * rank], batches_[2 * rank + 1]}) {
      model.ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
        return NextTokenLoss(batch, hidden_TD, head_VD, 0.01);
      });
    }
    EXPECT_FALSE(model.Step(golden_.learning_rate, golden_.max_norm).skipped);
  }

  const GoldenRun golden_ = ReadGoldenRun("llama", GetParam().optimizer);
  // Packed before anything fails: what is outside of the model is its caller's.
  const std::vector<PackedSequences> batches_ = [this] {
    std::vector<PackedSequences> batches;
    for (int i = 0; i < 4; ++i) batches.push_back(PackIds({golden_.sequences[i]}));
    return batches;
  }();
};

INSTANTIATE_TEST_SUITE_P(Modes, FailedStep,
                         ::testing::Values(Mode{}, Mode{.stage = 0, .checkpointing = false},
                                           Mode{.stage = 2, .dtype = at::kBFloat16, .ema_decay = 0.5},
                                           Mode{.dtype = at::kBFloat16, .offload = true},
                                           Mode{.ema_decay = 0.5, .optimizer = "sgd"}));

// On one rank, and on both of two at once; what is under way then is waited for.
TEST_P(FailedStep, ThrowsAndLeavesAModelThatCanBeDestroyed) {
  for (const int ranks : {1, 2}) {
    for (const char* place :
         {"trainable_model.backward", "trainable_model.step", "trainable_model.optimizer", "trainable_model.refresh"}) {
      SCOPED_TRACE(place);
      RunRanks(ranks, [&](ProcessGroup& group) {
        Ledger ledger;
        auto model = Load(group, ledger);
        TakeStep(*model);
        group.Barrier();
        ASSERT_TRUE(SetFailPoints(std::string(place) + "=error").ok());
        group.Barrier();
        EXPECT_THROW(TakeStep(*model), std::runtime_error);
        group.Barrier();
        ASSERT_TRUE(SetFailPoints("").ok());
        model.reset();
        EXPECT_EQ(ledger.current(MemoryCategory::kParameters), 0);
        EXPECT_EQ(ledger.current(MemoryCategory::kOptimizer), 0);
      });
    }
  }
}

TEST(SkippedStep, AGradientThatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
  const GoldenRun golden = ReadGoldenRun("llama");
  for (int stage : {0, 2, 3}) {
    for (double poison : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      RunRanks(2, [&](ProcessGroup& group) {
        Ledger ledger;
        auto model = LoadOrDie(golden.folder, golden.Fp32(stage, true), group, ledger);
        const PackedSequences batch = PackIds(golden.sequences);
        model->ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_weight) {
          const at::Tensor loss = NextTokenLoss(batch, hidden_TD, head_weight, 0.01);
          return group.rank() == 1 ? loss * poison : loss;
        });
        const StepResult result = model->Step(golden.learning_rate, golden.max_norm);
        EXPECT_TRUE(result.skipped);
        EXPECT_FALSE(std::isfinite(result.grad_norm));
        EXPECT_EQ(model->steps(), 0);
        // Nothing was changed: the golden run starts from here.
        for (int step = 0; step < 2; ++step) {
          EXPECT_NEAR(Accumulate(*model, golden.sequences, 4) / golden.losses[step], 1, 1e-5);
          EXPECT_FALSE(model->Step(golden.learning_rate, golden.max_norm).skipped);
        }
      });
    }
  }
}

}  // namespace
}  // namespace quartet

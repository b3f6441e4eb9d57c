// After a step that has failed, wherever it did, training goes on as if it had never been begun, or the model says that
// it is torn.

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

// Stands before the allocator of tensors in the process's memory, and refuses one allocation of the thread that asks
// for it.
class RefusingAllocator final : public c10::Allocator {
 public:
  // The n-th from now on, from 1; 0: none.
  static void Refuse(int64_t n) {
    static RefusingAllocator instance;
    left = n;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > 0 && left > 0 && --left == 0) throw std::bad_alloc();
    return memory_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return memory_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const override { memory_->copy_data(to, from, count); }

 private:
  RefusingAllocator() : memory_(c10::GetAllocator(c10::DeviceType::CPU)) {
    c10::SetAllocator(c10::DeviceType::CPU, this, /*priority=*/2);
  }
  c10::Allocator* const memory_;
  static thread_local int64_t left;
};
thread_local int64_t RefusingAllocator::left = 0;

struct Mode {
  int stage = 3;
  bool checkpointing = true;
  at::ScalarType dtype = at::kFloat;
  bool offload = false;  // optimizer, inputs of blocks
  double ema_decay = 0;
};

std::ostream& operator<<(std::ostream& out, const Mode& mode) {
  return out << "stage " << mode.stage << ", checkpointing " << mode.checkpointing << ", " << mode.dtype
             << (mode.offload ? ", offload" : "") << (mode.ema_decay > 0 ? ", average" : "");
}

// All that later steps start from.
struct State {
  int64_t steps;
  std::vector<at::Tensor> values;
};

State CopyState(TrainableModel& model) {
  State state = {.steps = model.steps(), .values = {}};
  for (int g = 0; g < static_cast<int>(model.model().layout().groups.size()); ++g) {
    for (const NamedState& part : model.state(g)) state.values.push_back(part.values.clone());
    state.values.push_back(model.gradient(g).clone());
    const GatheredGroup gathered = model.model().Gather(g);
    for (const at::Tensor& tensor : gathered.tensors()) state.values.push_back(tensor.clone());
  }
  return state;
}

// Gradients count too: between steps they are zero.
void ExpectSame(TrainableModel& model, const State& expected) {
  EXPECT_EQ(model.steps(), expected.steps);
  const State found = CopyState(model);
  ASSERT_EQ(found.values.size(), expected.values.size());
  for (size_t i = 0; i < found.values.size(); ++i) {
    EXPECT_TRUE(at::equal(found.values[i], expected.values[i])) << "tensor " << i;
  }
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

  const GoldenRun golden_ = ReadGoldenRun("llama");
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
                                           Mode{.dtype = at::kBFloat16, .offload = true}));

TEST_P(FailedStep, WhicheverAllocationFailsTheNextStepIsWhatItWouldHaveBeenOrTheModelIsTorn) {
  RunRanks(1, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = Load(group, ledger);
    TakeStep(*model);
    const State first = CopyState(*model);
    TakeStep(*model);
    const State second = CopyState(*model);

    const auto load_after_one = [&] {
      model = Load(group, ledger);
      TakeStep(*model);
    };
    load_after_one();
    int64_t failures = 0;
    for (int64_t n = 1;; ++n) {
      SCOPED_TRACE("allocation " + std::to_string(n));
      try {
        const absl::Cleanup none = [] { RefusingAllocator::Refuse(0); };
        RefusingAllocator::Refuse(n);
        TakeStep(*model);
        break;
      } catch (const std::exception&) {
        ++failures;
      }
      if (model->torn()) {
        load_after_one();
      } else {
        ExpectSame(*model, first);
        EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
        EXPECT_EQ(ledger.current(MemoryCategory::kCommunication), 0);
        EXPECT_EQ(ledger.current(MemoryCategory::kActivations), 0);
      }
      if (HasFailure()) return;
    }
    EXPECT_GT(failures, 50);
    EXPECT_FALSE(model->torn());
    ExpectSame(*model, second);
  });
}

// On one rank, and on both of two at once.
TEST_P(FailedStep, IsTornFromTheFirstWeightThatMovesOn) {
  for (const int ranks : {1, 2}) {
    for (const auto& [place, torn] : {std::pair("trainable_model.backward", false),
                                      {"trainable_model.step", false},
                                      {"trainable_model.adamw", true},
                                      {"trainable_model.refresh", true}}) {
      SCOPED_TRACE(place);
      RunRanks(ranks, [&, place = place, torn = torn](ProcessGroup& group) {
        Ledger ledger;
        auto model = Load(group, ledger);
        TakeStep(*model);
        const State before = CopyState(*model);
        group.Barrier();
        ASSERT_TRUE(SetFailPoints(std::string(place) + "=error").ok());
        group.Barrier();
        EXPECT_THROW(TakeStep(*model), std::runtime_error);
        EXPECT_EQ(model->torn(), torn);
        group.Barrier();
        ASSERT_TRUE(SetFailPoints("").ok());
        if (!torn) ExpectSame(*model, before);
      });
    }
  }
}

TEST(AfterAFailure, AnExceptionOfTheLossLeavesAModelThatTrainsOn) {
  const GoldenRun golden = ReadGoldenRun("llama");
  for (bool checkpointing : {true, false}) {
    RunRanks(2, [&](ProcessGroup& group) {
      Ledger ledger;
      auto model = LoadOrDie(golden.folder, golden.Fp32(3, checkpointing), group, ledger);
      Accumulate(*model, {golden.sequences[0], golden.sequences[1]}, 1);
      const PackedSequences batch = PackIds(golden.sequences);
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

TEST(AfterAFailure, AGradientThatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
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

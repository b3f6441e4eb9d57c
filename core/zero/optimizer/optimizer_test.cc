// How training with them goes: core/zero/training_curve_test.cc.
#include "core/zero/optimizer/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/zero/optimizer/optimizer_options.h"
#include "proto/run_config.pb.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Optimizer, IsTheOneThatItsRowNames) {
  for (const OptimizerTraits& row : Optimizers()) {
    TrainerConfig trainer;
    trainer.set_optim(std::string(row.name));
    EXPECT_EQ(MakeOptimizer(trainer)->name(), row.name);
  }
  EXPECT_EQ(MakeOptimizer(TrainerConfig())->name(), "adam");
}

TEST(Optimizer, KeepsStateByTheNamesThatTorchHasForIt) {
  TrainerConfig trainer;
  EXPECT_THAT(MakeOptimizer(trainer)->state(), ElementsAre("exp_avg", "exp_avg_sq"));
  trainer.set_optim("sgd");
  EXPECT_THAT(MakeOptimizer(trainer)->state(), ElementsAre("momentum_buffer"));
  trainer.set_momentum(0);
  EXPECT_THAT(MakeOptimizer(trainer)->state(), IsEmpty());
}

}  // namespace
}  // namespace quartet

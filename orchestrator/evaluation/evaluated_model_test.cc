#include "orchestrator/evaluation/evaluated_model.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/base/testing/scratch_folder.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

TEST(EvaluatedModel, OfALinkIsTheCheckpointThatItNames) {
  const ScratchFolder scratch;
  const std::string checkpoints = scratch.path() + "/first/checkpoints";
  fs::create_directories(checkpoints + "/step_8/policy_ema");
  fs::create_directories(checkpoints + "/step_8/policy");
  fs::create_directory_symlink("step_8", checkpoints + "/latest");
  const EvaluatedModel latest = EvaluatedModelIn(checkpoints + "/latest/policy/");
  EXPECT_EQ(latest.name, "first/step_8");
  EXPECT_EQ(latest.step, 7) << "from 0, as in all files";
  EXPECT_EQ(EvaluatedModelIn(checkpoints + "/latest/policy_ema").name, "first/step_8/policy_ema");
}

TEST(EvaluatedModel, OfNoRunIsItsFolder) {
  EXPECT_EQ(EvaluatedModelIn("/models/SmolLM2-135M/").name, "SmolLM2-135M");
  EXPECT_EQ(EvaluatedModelIn("/models/SmolLM2-135M/").step, -1);
  EXPECT_EQ(EvaluatedModelIn("exported/step_8").name, "step_8");
  EXPECT_EQ(EvaluatedModelIn("exported/step_8").step, 7);
  EXPECT_EQ(EvaluatedModelIn("exported/step_by_step").step, -1);
}

TEST(EvaluatedModel, OfARunIsItsPolicyAfterTheStepsDone) {
  RunConfig config;
  config.set_run_dir("/runs/second");
  config.mutable_actor()->set_pretrain("/runs/first/checkpoints/step_8/policy");
  EXPECT_EQ(EvaluatedModelOf(config, -1).name, "first/step_8");
  EXPECT_EQ(EvaluatedModelOf(config, -1).step, -1);
  EXPECT_EQ(EvaluatedModelOf(config, 0).name, "second/step_1");
  // The state's weights, not those of the folder beside it.
  config.mutable_actor()->set_load_checkpoint("/nowhere/third/checkpoints/step_2/policy_state");
  EXPECT_EQ(EvaluatedModelOf(config, -1).name, "third/step_2");
}

}  // namespace
}  // namespace quartet

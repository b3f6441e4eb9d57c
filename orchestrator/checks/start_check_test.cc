#include "orchestrator/checks/start_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

TEST(StartCheck, SaysWithoutServicesWhatARunCannotGoOnWith) {
  RunConfig config;
  config.mutable_train()->set_max_steps(5);
  ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
  CheckpointRecord resume;
  resume.step = 5;
  resume.seed = config.seed();
  resume.rollout_batch_size = config.rollout().rollout_batch_size();
  resume.prompts_hash = 7;
  resume.policy = SavedTrainer{};
  const auto error = [&](int64_t steps) {
    return std::string(CheckGoesOn(config, 7, steps, resume, "run/checkpoints").message());
  };
  EXPECT_THAT(error(5), HasSubstr("run/checkpoints/step_5: it was made without a critic"));
  resume.critic = SavedTrainer{};
  EXPECT_EQ(error(5), "");
  resume.prompts_hash = 8;
  EXPECT_THAT(error(5), HasSubstr("it was made with other rows"));
  resume.rows_are_mended = true;
  EXPECT_EQ(error(5), "");
  EXPECT_EQ(error(4), "the run has made 5 steps already, more than the 4 of train.max_steps; raise it to go on");
  config.mutable_algorithm()->set_advantage_estimator("rloo");
  EXPECT_THAT(error(5), HasSubstr("it was made with a critic"));
}

}  // namespace
}  // namespace quartet

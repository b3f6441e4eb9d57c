#include "orchestrator/checks/start_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::AllOf;
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
  ++resume.seed;
  EXPECT_THAT(error(5), HasSubstr("run/checkpoints/step_5: it was made with seed 43, not 42"));
  --resume.seed;
  ++resume.rollout_batch_size;
  EXPECT_THAT(error(5), HasSubstr("it was made with rollout.rollout_batch_size 129, not 128"));
  --resume.rollout_batch_size;
  resume.prompts_hash = 8;
  const std::string way_out = "train.allow_changed_run=true; or begin another run, in another run_dir";
  EXPECT_THAT(error(5), AllOf(HasSubstr("it was made with other rows than those of , or they read otherwise (by the "),
                              HasSubstr("data.template_date"), HasSubstr(way_out)));
  resume.rows_read_otherwise = {"data.template_date: nothing -> \"2025-12-31\""};
  EXPECT_THAT(error(5), AllOf(HasSubstr("that read otherwise, or others of them; this has changed since:\n  "
                                        "data.template_date: nothing -> \"2025-12-31\"\n"),
                              HasSubstr(way_out)));
  resume.rows_are_mended = true;
  EXPECT_EQ(error(5), "");
  EXPECT_EQ(error(4), "the run has made 5 steps already, more than the 4 of train.max_steps; raise it to go on");
  config.mutable_algorithm()->set_advantage_estimator("rloo");
  EXPECT_THAT(error(5), HasSubstr("it was made with a critic"));
}

TEST(StartCheck, SaysWithoutServicesWhichRowsARunCannotGoOnWith) {
  RunConfig config;
  CheckpointRecord resume;
  resume.step = 5;
  resume.rollout_batch_size = 4;
  resume.prompts_hash = 7;
  resume.policy = SavedTrainer{};
  RunRows rows = {.batch_field = "train.train_batch_size", .batch_size = 4, .hash = 7, .files = "rows.jsonl"};
  const auto error = [&](const std::string& model) {
    const absl::Status status = CheckRowsGoOn(config, rows, model, resume, "run/checkpoints");
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error("actor"), "");
  EXPECT_EQ(error("critic"), "the run cannot go on after run/checkpoints/step_5: it has no state of the critic");
  rows.batch_size = 3;
  EXPECT_THAT(error("actor"), HasSubstr("it was made with train.train_batch_size 4, not 3"));
  rows.batch_size = 4;
  rows.hash = 8;
  EXPECT_THAT(error("actor"), HasSubstr("it was made with other rows than those of rows.jsonl"));
  config.mutable_train()->set_allow_changed_run(true);
  EXPECT_EQ(error("actor"), "");
  EXPECT_THAT(error("critic"), HasSubstr("no state of the critic")) << "that no option brings back";
}

}  // namespace
}  // namespace quartet

#include "orchestrator/evaluation/evaluation.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

TEST(Evaluation, RefusesSettingsOfWhichFlagsHaveTheSay) {
  const auto message = [](const ValueOrigins& origins, bool has_model) {
    return std::string(CheckSetByFlags(origins, has_model).message());
  };
  EXPECT_EQ(message({{"run_dir", "--set"}}, false),
            "--set=run_dir has no effect: --output says where results go; leave it out");
  EXPECT_EQ(message({{"run_dir", "/runs/first/run.textproto"}, {"rollout.pretrain", "--set"}}, false), "");
  EXPECT_EQ(message({{"rollout.pretrain", "--set"}}, true),
            "--set=rollout.pretrain has no effect: --model says what is evaluated; leave it out");
  EXPECT_EQ(message({{"actor.pretrain", "--set"}}, true),
            "--set=actor.pretrain has no effect: the tokenizer is that of --model; leave it out");
  EXPECT_EQ(message({{"actor.pretrain", "/runs/first/run.textproto"}, {"eval.data", "--set"}}, true), "");
}

// Else the model that the run began with is evaluated.
TEST(Evaluation, RefusesAnotherActorBesideTheRolloutOfARunsConfiguration) {
  const ValueOrigins run = {{"actor.pretrain", "--set"}, {"rollout.pretrain", "/runs/first/run.textproto"}};
  EXPECT_EQ(CheckSetByFlags(run, /*has_model=*/false).message(),
            "--set=actor.pretrain has no effect: rollout.pretrain, set by /runs/first/run.textproto, says what is "
            "evaluated; give the model, or the checkpoint, by --model; leave it out");
  EXPECT_TRUE(CheckSetByFlags({{"actor.pretrain", "--set"}}, /*has_model=*/false).ok());
  EXPECT_TRUE(CheckSetByFlags({{"actor.pretrain", "--set"}, {"rollout.pretrain", "--set"}}, false).ok());
}

TEST(Evaluation, NamesTheFlagThatSaysTheModelInItsErrors) {
  const absl::Status error = absl::NotFoundError("rollout.pretrain: /m has no config.json");
  EXPECT_EQ(NamingModelFlag(error), absl::NotFoundError("--model: /m has no config.json"));
  EXPECT_EQ(NamingModelFlag(absl::InvalidArgumentError("rollout.max_model_len is 9; the model (actor.pretrain) has 8")),
            absl::InvalidArgumentError("rollout.max_model_len is 9; the model (--model) has 8"));
  EXPECT_EQ(NamingModelFlag(absl::OkStatus()), absl::OkStatus());
}

}  // namespace
}  // namespace quartet

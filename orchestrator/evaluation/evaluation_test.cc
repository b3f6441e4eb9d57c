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

}  // namespace
}  // namespace quartet

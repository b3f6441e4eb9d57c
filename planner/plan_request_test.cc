#include "planner/plan_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/testing/scratch_folder.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class PlanRequestTest : public ::testing::Test {
 protected:
  PlanRequestTest() {
    scratch_.Write("model/config.json",
                   R"({"model_type": "llama", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 16,
                       "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
                       "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "eos_token_id": 2})");
    config_ = scratch_.Write(
        "run.textproto",
        absl::StrCat("data { prompt_data: \"none.jsonl\" prompt_max_len: 16 }\n", "rollout { generate_max_len: 16 }\n",
                     "actor { pretrain: \"", scratch_.path(), "/model\" }\n", "critic { pretrain: \"", scratch_.path(),
                     "/model\" }\n", "reward { source { rule: \"number\" } }\n"));
  }
  absl::StatusOr<PlanRequest> Read(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"plan", "--config=" + config_});
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    PlanRequest request;
    const CommandLine line = PlanCommandLine(&request);
    const auto parsed = ParseFlags(static_cast<int>(argv.size()), argv.data(), line.flags);
    if (!parsed.ok()) return parsed.status();
    if (absl::Status wrong = line.check(); !wrong.ok()) return wrong;
    if (absl::Status wrong = LoadPlanRequest(&request); !wrong.ok()) return wrong;
    return request;
  }
  std::string Error(const std::vector<std::string>& arguments) const {
    return std::string(Read(arguments).status().message());
  }

  ScratchFolder scratch_;
  std::string config_;
};

TEST_F(PlanRequestTest, IsAllServicesAndTheKnownRatesUnlessToldOtherwise) {
  const auto plain = Read({});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_THAT(plain->services, ElementsAre("rollout", "policy_trainer", "critic_trainer", "scorer"));
  EXPECT_EQ(plain->search, PlanRequest::Search::kNone);
  EXPECT_FALSE(plain->json || plain->flops || plain->bytes_per_second || plain->process_bytes || plain->cuda_bytes);

  const auto told = Read(
      {"--service=rollout", "--search=gpus", "--tflops=2.5", "--gb_per_second=3", "--process_mib=4", "--cuda_mib=0"});
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_THAT(told->services, ElementsAre("rollout"));
  EXPECT_EQ(told->search, PlanRequest::Search::kGpus);
  EXPECT_EQ(told->flops, 2.5e12);
  EXPECT_EQ(told->bytes_per_second, 3e9);
  EXPECT_EQ(told->process_bytes, 4 << 20);
  EXPECT_EQ(told->cuda_bytes, 0);
}

TEST_F(PlanRequestTest, IsTheServicesOfTheProgramThatIsPlanned) {
  const std::string model = scratch_.path() + "/model";
  scratch_.Write("run.textproto", "data { apply_chat_template: true }\n");
  const auto services = [&](std::vector<std::string> arguments) {
    const auto request = Read(std::move(arguments));
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? request->services : std::vector<std::string>();
  };
  const std::string actor = "--set=actor.pretrain=" + model, pairs = "--set=preference.data=pairs.jsonl";
  EXPECT_THAT(services({"--program=sft", actor, "--set=sft.data=rows.jsonl"}), ElementsAre("policy_trainer"));
  EXPECT_THAT(services({"--program=dpo", actor, pairs}), ElementsAre("policy_trainer", "scorer"));
  EXPECT_THAT(services({"--program=reward_model", "--set=critic.pretrain=" + model, pairs}),
              ElementsAre("critic_trainer"));
  EXPECT_EQ(Error({"--program=sft", actor}), "sft.data is not set; it names files of examples, JSONL or Parquet");
  EXPECT_EQ(Error({actor, "--set=sft.data=rows.jsonl"}),
            "sft.data has no effect: a PPO run makes no fine-tuning; the program sft does");
  EXPECT_EQ(Error({actor, pairs}),
            "preference.data has no effect: a PPO run has no pairs; the programs dpo and reward_model learn from them");
  EXPECT_EQ(Error({"--program=rlhf"}), "--program is \"rlhf\"; allowed: ppo, sft, dpo, reward_model");
  EXPECT_EQ(Error({"--program=dpo", actor, pairs, "--service=rollout"}),
            "--service=rollout is not of --program=dpo, which has policy_trainer, scorer");
}

TEST_F(PlanRequestTest, HasAbsolutePathsForProgramsThatAreStartedElsewhere) {
  const std::string model = scratch_.path() + "/model";
  const auto request =
      Read({"--set=run_dir=runs/first", "--set=actor.pretrain=" + model, "--set=seed=7",
            "--set=data.prompt_data=a.jsonl,b.jsonl", "--set=data.prompt_data=/c.jsonl", "--set=rollout.top_p=0.5"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(ConfigArguments(*request),
              ElementsAre("--config=" + config_, "--set=run_dir=" + ResolveUserPath("runs/first"),
                          "--set=actor.pretrain=" + model, "--set=seed=7",
                          "--set=data.prompt_data=[\"" + ResolveUserPath("a.jsonl") + "\", \"" +
                              ResolveUserPath("b.jsonl") + "\", \"/c.jsonl\"]",
                          "--set=rollout.top_p=0.5"));
  RunConfig again = request->config;
  EXPECT_TRUE(ApplyOverrides({"data.prompt_data=[\"/a.jsonl\", \"/c.jsonl\"]"}, &again).ok());
  EXPECT_EQ(again.data().prompt_data_size(), 2);
}

TEST_F(PlanRequestTest, NamesTheFlagThatIsWrong) {
  EXPECT_EQ(Error({"--search=batches"}), "--search is \"batches\"; allowed: gpus, batch");
  EXPECT_EQ(Error({"--tflops=0"}), "--tflops is \"0\"; allowed: a number above 0");
  EXPECT_EQ(Error({"--process_mib=-1"}), "--process_mib is \"-1\"; allowed: whole mebibytes, at least 0");
  EXPECT_EQ(Error({"--format=json", "--tflops=2"}), "--tflops and --gb_per_second have no effect with --format=json");
  EXPECT_THAT(Error({"--service=reward"}), StartsWith("there is no service 'reward'"));
}

TEST_F(PlanRequestTest, NamesTheServicesThatCanBePlannedWhereTheRunIsNotWhole) {
  const std::string error = Error({"--set=critic.pretrain="});
  EXPECT_THAT(error, AllOf(StartsWith("critic.pretrain is not set"), HasSubstr("; or --service=rollout"),
                           HasSubstr(" --service=policy_trainer"), Not(HasSubstr("--service=critic_trainer"))));
  EXPECT_EQ(Error({"--set=critic.pretrain=", "--service=policy_trainer"}), "");
  EXPECT_THAT(Error({"--set=critic.pretrain=", "--service=critic_trainer"}), Not(HasSubstr("--service=")));
}

TEST_F(PlanRequestTest, NamesTheModelThatCannotBePlanned) {
  EXPECT_THAT(Error({"--set=critic.pretrain=" + scratch_.path() + "/none"}),
              AllOf(StartsWith("critic.pretrain: the folder "), HasSubstr("does not exist")));
  EXPECT_THAT(Error({"--set=rollout.generate_max_len=100"}), StartsWith("rollout.max_model_len is 116; at most 64"));
  EXPECT_EQ(Error({"--set=rollout.generate_max_len=100", "--service=policy_trainer"}), "");
}

}  // namespace
}  // namespace quartet

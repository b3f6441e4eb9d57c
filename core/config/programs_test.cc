#include "core/config/programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/config/help.h"
#include "core/config/run_config.h"
#include "core/config/services.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Strings = std::vector<std::string>;

std::string ErrorFor(Program program, const Strings& overrides) {
  return std::string(LoadRunConfig("", overrides, "", program).status().message());
}

TEST(Programs, HaveTheSameFieldsWithDefaultsOfTheirOwn) {
  const auto config_of = [](Program program) { return LoadRunConfig("", {}, "", program).value(); };
  EXPECT_EQ(config_of(Program::kPpo).actor().learning_rate(), 1e-6);
  EXPECT_EQ(config_of(Program::kPpo).critic().learning_rate(), 9e-6);
  EXPECT_EQ(config_of(Program::kSft).actor().learning_rate(), 1e-4);
  EXPECT_EQ(config_of(Program::kDpo).actor().learning_rate(), 1e-6);
  EXPECT_EQ(config_of(Program::kRewardModel).critic().learning_rate(), 1e-5);
  EXPECT_EQ(config_of(Program::kPpo).train().train_batch_size(), 128);
  for (const Program program : {Program::kSft, Program::kDpo, Program::kRewardModel}) {
    EXPECT_EQ(config_of(program).train().train_batch_size(), 32);
    EXPECT_EQ(config_of(program).train().num_episodes(), 1);
  }
  EXPECT_EQ(config_of(Program::kSft).actor().max_len(), 2048);
  EXPECT_EQ(config_of(Program::kRewardModel).critic().max_len(), 2048);
}

TEST(Programs, LearnFromRowsInBatchesOfAnySize) {
  EXPECT_THAT(ErrorFor(Program::kPpo, {"train.train_batch_size=48"}), StartsWith("train.train_batch_size: 48"));
  for (const Program program : {Program::kSft, Program::kDpo, Program::kRewardModel, Program::kPolicyTrainer}) {
    EXPECT_THAT(ErrorFor(program, {"train.train_batch_size=48"}), IsEmpty());
  }
  EXPECT_THAT(ErrorFor(Program::kSft, {"train.max_steps=2", "train.num_episodes=2"}),
              StartsWith("train.num_episodes has no effect"));
  EXPECT_THAT(ErrorFor(Program::kDpo, {"train.eval_steps=2"}),
              AllOf(StartsWith("train.eval_steps has no effect"), HasSubstr("preference.eval_data")));
  EXPECT_THAT(ErrorFor(Program::kDpo, {"train.eval_steps=2", "preference.eval_data=/d"}), IsEmpty());
}

// Of each field that a program does not read: a configuration in which it is set is refused, whatever else it says.
TEST(Programs, RefuseWhatTheyDoNotRead) {
  const auto refused = [](Program program, const Strings& sets) {
    for (const std::string& set : sets) {
      const std::string field = set.substr(0, set.find('='));
      EXPECT_THAT(ErrorFor(program, {set}), StartsWith(field + " has no effect: "));
    }
  };
  refused(Program::kPpo, {"sft.data=/d", "sft.input_key=q", "sft.output_key=a", "sft.end_token=</s>",
                          "preference.beta=1", "preference.data=/d"});
  // Whatever the value: some of these are defaults.
  refused(Program::kSft, {"data.prompt_data=/d",
                          "data.input_key=q",
                          "data.label_key=a",
                          "data.label_extract=after_####",
                          "data.max_samples=1",
                          "data.source_key=s",
                          "data.prompt_max_len=7",
                          "rollout.generate_max_len=7",
                          "rollout.temperature=0.5",
                          "rollout.stop_token_ids=7",
                          "rollout.pretrain=/other",
                          "rollout.http.listen=127.0.0.1:0",
                          "algorithm.gamma=1",
                          "algorithm.kl.init_kl_coef=0.5",
                          "actor.micro_rollout_batch_size=4",
                          "critic.pretrain=/m",
                          "critic.learning_rate=1",
                          "critic.zero_stage=2",
                          "reference.zero_stage=0",
                          "train.updates_per_batch=2",
                          "train.critic_train_batch_size=2",
                          "train.eval_steps=2",
                          "train.keep_batches=2",
                          "train.max_log_prob_diff_mean=1",
                          "train.max_upgrade_diff_mean=1",
                          "eval.data=/d",
                          "preference.beta=1",
                          "services.rollout.ranks=2",
                          "services.critic_trainer.device=cuda",
                          "services.scorer.threads=1"});
  EXPECT_THAT(ErrorFor(Program::kSft, {"reward.source.0.rule=number"}), StartsWith("reward.source has no effect: "));
  refused(Program::kDpo,
          {"sft.data=/d", "critic.pretrain=/m", "preference.margin_key=m", "algorithm.kl.init_kl_coef=0.5",
           "eval.data=/d", "services.critic_trainer.ranks=2", "services.rollout.threads=1"});
  refused(Program::kRewardModel, {"actor.pretrain=/m", "actor.learning_rate=1", "preference.beta=1",
                                  "reference.pretrain=/m", "services.policy_trainer.ranks=2"});
}

TEST(Programs, NameAllThatTheyDoNotRead) {
  EXPECT_EQ(
      ErrorFor(Program::kSft, {"sft.data=a,b", "algorithm.gamma=1", "rollout.top_p=1", "rollout.stop_token_ids=1,2"}),
      "rollout.top_p has no effect: it is of runs that generate answers; nor have the rest of rollout, algorithm");
}

TEST(Programs, AreServedByFilesOfAllOfThem) {
  for (const Program program : {Program::kPolicyTrainer, Program::kScorer, Program::kViewer}) {
    EXPECT_THAT(ErrorFor(program, {"sft.data=/d", "preference.beta=1", "algorithm.gamma=1", "rollout.top_p=0.5"}),
                IsEmpty());
  }
}

TEST(Programs, AcceptWhatTheyReadAndWhatTheyPrint) {
  const std::string path = ::testing::TempDir() + "/programs_test.textproto";
  const auto checked = [&](Program program, const Strings& overrides) {
    const absl::StatusOr<RunConfig> config = LoadRunConfig("", overrides, "", program);
    if (!config.ok()) return std::string(config.status().message());
    // As its run folder keeps it.
    RunConfig printed = *config;
    ClearUnread(program, &printed);
    EXPECT_TRUE(AtomicWriteFile(path, PrintRunConfig(printed)).ok());
    const auto again = LoadRunConfig(path, {}, "", program);
    if (!again.ok()) return std::string(again.status().message());
    EXPECT_EQ(again->DebugString(), config->DebugString());
    EXPECT_TRUE(LoadRunConfig(path, {}, "", Program::kViewer).ok());
    return std::string(CheckFor(*config, program).message());
  };
  const Strings sft = {"actor.pretrain=m", "sft.data=d"};
  EXPECT_EQ(checked(Program::kSft, sft), "");
  for (const char* set :
       {"actor.max_len=9", "actor.learning_rate=1", "data.apply_chat_template=true", "data.input_template=p{}",
        "data.checked_rows=5", "data.shuffle=false", "data.skip_malformed=true", "data.filter_overlong_prompts=false",
        "sft.end_token=</s>", "sft.end_token=", "actor.lr_scheduler=constant", "actor.max_tokens_per_micro_batch=4096",
        "actor.micro_train_batch_size=2", "train.call_timeout_seconds=5", "train.max_steps=5", "train.num_episodes=3",
        "train.train_batch_size=48", "services.policy_trainer.ranks=2", "seed=5"}) {
    EXPECT_EQ(checked(Program::kSft, {sft[0], sft[1], set}), "") << set;
  }
  for (const char* set :
       {"preference.beta=0.5", "preference.loss=ipo", "preference.label_smoothing=0.1", "preference.eval_data=e",
        "actor.learning_rate=1e-5", "reference.zero_stage=0", "actor.micro_train_batch_size=2",
        "services.scorer.ranks=2", "data.apply_chat_template=true", "actor.max_len=9", "train.train_batch_size=5"}) {
    EXPECT_EQ(checked(Program::kDpo, {"actor.pretrain=m", "preference.data=d", set}), "") << set;
  }
  for (const char* set : {"preference.margin_key=m", "train.max_steps=3", "preference.end_token=</s>",
                          "critic.max_len=9", "critic.lr_scheduler=constant"}) {
    EXPECT_EQ(checked(Program::kRewardModel, {"critic.pretrain=m", "preference.data=d", set}), "") << set;
  }
  EXPECT_EQ(
      checked(Program::kPpo, {"actor.pretrain=m", "critic.pretrain=m", "reward.source.0.rule=number",
                              "data.prompt_data=d", "algorithm.kl.init_kl_coef=0", "rollout.http.listen=127.0.0.1:0"}),
      "");
}

TEST(Programs, AreHelpedWithWhatTheyReadAlone) {
  EXPECT_THAT(DescribeRunConfig(Program::kViewer),
              AllOf(HasSubstr("rollout_batch_size"), HasSubstr("default: \"128\""), HasSubstr("message TlsConfig"),
                    HasSubstr("gamma"), HasSubstr("int32 updates_per_batch"), HasSubstr("beta")));
  EXPECT_THAT(DescribeRunConfig(Program::kSft),
              AllOf(HasSubstr("// One run, whole"), HasSubstr("  // Where it is not set: actor.learning_rate 1e-4.\n"),
                    HasSubstr("int32 train_batch_size"), HasSubstr("multiturn"), HasSubstr("message TlsConfig"),
                    Not(HasSubstr("gamma")), Not(HasSubstr("rollout_batch_size = ")), Not(HasSubstr("RewardSource")),
                    Not(HasSubstr("updates_per_batch = ")), Not(HasSubstr("EvalSet")), Not(HasSubstr("\n\n\n"))));
  EXPECT_THAT(DescribeRunConfig(Program::kPpo),
              HasSubstr("  // Where it is not set: actor.learning_rate 1e-6, critic.learning_rate 9e-6.\n"));
}

TEST(Programs, SayWhichServicesTheyDriveAndWhatTheyLearn) {
  RunConfig config = LoadRunConfig("", {}, "", Program::kPpo).value();
  EXPECT_EQ(ServicesOf(Program::kPpo, config), kServiceNames);
  EXPECT_EQ(ServicesOf(Program::kEvaluate, config), Strings({"rollout", "scorer"}));
  config.mutable_algorithm()->set_advantage_estimator("rloo");
  EXPECT_EQ(ServicesOf(Program::kPpo, config), Strings({"rollout", "policy_trainer", "scorer"}));
  EXPECT_EQ(LearningSection(Program::kDpo), "actor");
  EXPECT_EQ(LearningSection(Program::kRewardModel), "critic");
  EXPECT_EQ(ExecutableName(Program::kPpo), "orchestrator");
  EXPECT_EQ(ExecutableName(Program::kSft), "sft");
  EXPECT_EQ(ExecutableName(Program::kEvaluate), "evaluate");
}

// Every row's paths are fields, and its defaults are taken: what is misspelt there would be found by nobody.
TEST(Programs, KnowOnlyFieldsThatThereAre) {
  for (const Program program :
       {Program::kPpo, Program::kSft, Program::kDpo, Program::kRewardModel, Program::kEvaluate}) {
    EXPECT_TRUE(LoadRunConfig("", {}, "", program).ok());
  }
  EXPECT_FALSE(IsRead(Program::kSft, "rollout"));
  EXPECT_TRUE(IsRead(Program::kSft, "actor.learning_rate"));
  EXPECT_EQ(DefaultOf(Program::kSft, "actor.learning_rate"), "1e-4");
  EXPECT_EQ(DefaultOf(Program::kViewer, "actor.learning_rate"), "");
}

}  // namespace
}  // namespace quartet

#include "core/config/resolving/recorded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "core/config/origins/origins.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string InFile(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

// The text of the run.textproto of a run that was started so.
std::string RecordOf(Program program, std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), "run_dir=/runs/a");
  const ConfigSources sources = {.overrides = overrides, .program = program};
  RunConfig config = LoadRunConfig(sources, "").value();
  ClearUnread(program, &config);
  return PrintRunConfig(config, OriginsOf(sources).value());
}

const std::vector<std::string> kPpoRun = {"actor.pretrain=/m", "critic.pretrain=/m", "data.prompt_data=/d.jsonl",
                                          "reward.source.0.rule=number", "algorithm.advantage_estimator=gae"};
const std::vector<std::string> kDpoRun = {"actor.pretrain=/m", "preference.data=/d.jsonl"};

absl::StatusOr<RunConfig> Again(const std::string& record, const std::vector<std::string>& overrides,
                                Program program = Program::kPpo) {
  return LoadRunConfig({.file = InFile("record.textproto", record), .overrides = overrides, .program = program}, "");
}

TEST(RecordedConfig, SaysWhichOfItsValuesAreDefaults) {
  const std::string record = RecordOf(Program::kPpo, kPpoRun);
  EXPECT_THAT(record, AllOf(HasSubstr("pretrain: \"/m\"  # --set\n"), HasSubstr("top_p: 1  # default 1\n"),
                            HasSubstr("dtype: \"bf16\"  # default \"bf16\"\n"),
                            HasSubstr("name: \"number\"  # default \"number\"\n"), HasSubstr("k: 1  # default 1\n")));
  EXPECT_THAT(RecordOf(Program::kPpo, {}), HasSubstr("run_dir: \"/runs/a\"  # --set\n"));
  const RecordedConfig read = ReadRecordedConfig(InFile("record.textproto", record)).value();
  EXPECT_EQ(read.set.actor().pretrain(), "/m");
  EXPECT_EQ(read.set.reward().source(0).rule(), "number");
  EXPECT_EQ(read.set.reward().source(0).name(), "");
  EXPECT_FALSE(read.set.rollout().has_top_p());
  EXPECT_EQ(read.set.eval().k_size(), 0);
  EXPECT_EQ(PrintRunConfig(read.whole), PrintRunConfig(LoadRunConfig({.overrides =
                                                                          [] {
                                                                            std::vector<std::string> all = kPpoRun;
                                                                            all.push_back("run_dir=/runs/a");
                                                                            return all;
                                                                          }()},
                                                                     "")
                                                           .value()));
}

TEST(RecordedConfig, IsTheSameWhenItIsGivenAgain) {
  const std::string record = RecordOf(Program::kPpo, kPpoRun);
  const RunConfig again = Again(record, {}).value();
  EXPECT_EQ(PrintRunConfig(again), PrintRunConfig(ReadRecordedConfig(InFile("r.textproto", record))->whole));
}

TEST(RecordedConfig, DefaultsAreKnownWhateverWhiteSpaceStandsAroundTheirMarks) {
  const std::string record = RecordOf(Program::kPpo, kPpoRun);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\n", "\r\n"}, {"\n", "   \n"}, {"  # default", "\t# default"}, {": ", ":  "}}) {
    const std::string other = absl::StrReplaceAll(record, {{from, to}});
    EXPECT_EQ(Again(other, {"actor.lora.r=8"})->actor().learning_rate(), 1e-5) << to;
  }
}

TEST(RecordedConfig, WhatIsWrittenOtherwiseThanARunWritesItIsRead) {
  const std::string record = RecordOf(Program::kPpo, kPpoRun);
  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_THAT(record, HasSubstr(from));
    return Again(absl::StrReplaceAll(record, {{from, to}}), {});
  };
  const auto one_line = with("dynamic_sampling {\n    filter: \"none\"  # default \"none\"",
                             "dynamic_sampling { filter: \"none\"  # default \"none\"\n");
  EXPECT_TRUE(one_line.ok()) << one_line.status();
  const auto longer =
      with("input_template: \"{}\"  # default \"{}\"", "input_template: \"{}\"  # default \"{}\"\n  \" more\"");
  ASSERT_TRUE(longer.ok()) << longer.status();
  EXPECT_EQ(longer->data().input_template(), "{} more");
}

TEST(RecordedConfig, AListOfWhichOneElementIsSetIsSet) {
  std::vector<std::string> with_samples = kPpoRun;
  with_samples.insert(with_samples.end(), {"eval.data=/h.jsonl", "eval.n_samples_per_prompt=4", "eval.temperature=1"});
  const std::string record = RecordOf(Program::kPpo, with_samples);
  ASSERT_THAT(record, HasSubstr("  k: 1  # default 1\n  k: 4  # default 4\n"));
  const auto with = [&](const std::string& from, const std::string& to) {
    return Again(absl::StrReplaceAll(record, {{from, to}}), {}).value();
  };
  EXPECT_THAT(with("k: 4  # default 4", "k: 2  # default 4").eval().k(), testing::ElementsAre(1, 2));
  EXPECT_THAT(with("k: 1  # default 1", "k: 3").eval().k(), testing::ElementsAre(3, 4));
}

TEST(RecordedConfig, WhatFollowsAnotherFieldDoesSoWhereThatIsSet) {
  const std::string record = RecordOf(Program::kPpo, kPpoRun);
  EXPECT_EQ(Again(record, {})->actor().learning_rate(), 1e-6);
  EXPECT_EQ(Again(record, {"actor.lora.r=8"})->actor().learning_rate(), 1e-5);
  EXPECT_EQ(Again(record, {"train.train_batch_size=16"})->train().critic_train_batch_size(), 16);
  EXPECT_EQ(Again(record, {"actor.pretrain=/n"})->rollout().pretrain(), "/n");
  EXPECT_EQ(Again(record, {"services.device=cuda"})->services().scorer().device(), "cuda");
  EXPECT_EQ(Again(record, {"actor.micro_train_batch_size=2"})->actor().max_tokens_per_micro_batch(), 0);
  EXPECT_FALSE(Again(record, {"train.max_steps=3"})->train().has_num_episodes());
  EXPECT_EQ(Again(record, {"reward.source.0.rule=exact_match"})->reward().source(0).name(), "exact_match");
  // But for what was set then, too.
  std::vector<std::string> with_rate = kPpoRun;
  with_rate.push_back("actor.learning_rate=1e-6");
  EXPECT_EQ(Again(RecordOf(Program::kPpo, with_rate), {"actor.lora.r=8"})->actor().learning_rate(), 1e-6);
}

TEST(RecordedConfig, DefaultsAreNotRefusedInAnotherProgramOrMethod) {
  const std::string dpo = RecordOf(Program::kDpo, kDpoRun);
  const auto judge = Again(dpo, {"actor=", "critic.pretrain=/m"}, Program::kRewardModel);
  ASSERT_TRUE(judge.ok()) << judge.status();
  EXPECT_EQ(judge->critic().learning_rate(), 1e-5);
  EXPECT_EQ(Again(dpo, {"preference=", "sft.data=/d.jsonl"}, Program::kSft)->actor().learning_rate(), 1e-4)
      << "that of fine-tuning";
  const auto grpo = Again(RecordOf(Program::kPpo, kPpoRun),
                          {"algorithm.advantage_estimator=grpo", "critic=", "rollout.n_samples_per_prompt=4"});
  ASSERT_TRUE(grpo.ok()) << grpo.status();
  // What somebody has set is.
  EXPECT_THAT(std::string(Again(dpo, {}, Program::kRewardModel).status().message()),
              HasSubstr("actor.pretrain has no effect"));
}

TEST(RecordedConfig, AListOfWhichNothingIsSetIsNotRefusedWhereItIsNotRead) {
  const std::string ppo = RecordOf(Program::kPpo, kPpoRun);
  const std::string of_defaults = absl::StrReplaceAll(ppo, {{"    rule: \"number\"  # --set\n", ""}});
  ASSERT_NE(of_defaults, ppo);
  const std::vector<std::string> others = {"sft.data=/d.jsonl", "critic=", "algorithm=", "data.prompt_data="};
  const auto sft = Again(of_defaults, others, Program::kSft);
  EXPECT_TRUE(sft.ok()) << sft.status();
  EXPECT_THAT(std::string(Again(ppo, others, Program::kSft).status().message()),
              HasSubstr("reward.source has no effect"));
}

TEST(RecordedConfig, WhereServicesListenByDefaultIsOfWhoStartsThem) {
  RunConfig launcher;
  launcher.mutable_services()->mutable_scorer()->set_listen("127.0.0.1:0");
  std::vector<std::string> run = kPpoRun;
  run.insert(run.end(), {"run_dir=/runs/a", "services.rollout.listen=127.0.0.1:7"});
  const auto record = [&](const RunConfig& defaults) {
    const ConfigSources sources = {.overrides = run};
    return InFile("listen.textproto",
                  PrintRunConfig(LoadRunConfig(sources, "", defaults).value(), OriginsOf(sources).value()));
  };
  const auto listen = [](const std::string& file, const RunConfig& defaults) {
    const RunConfig again = LoadRunConfig({.file = file}, "", defaults).value();
    EXPECT_EQ(again.services().rollout().listen(), "127.0.0.1:7");
    return again.services().scorer().listen();
  };
  EXPECT_EQ(listen(record(launcher), {}), "127.0.0.1:50054");
  EXPECT_EQ(listen(record({}), launcher), "127.0.0.1:0");
  EXPECT_EQ(listen(record(launcher), launcher), "127.0.0.1:0");
}

TEST(RecordedConfig, IsTheSameWhereALaterReleaseHasOtherDefaults) {
  std::vector<std::string> run = kPpoRun;
  run.insert(run.end(), {"eval.n_samples_per_prompt=4", "eval.temperature=1", "eval.data=/e.jsonl"});
  const std::string record = absl::StrReplaceAll(
      RecordOf(Program::kPpo, run), {{"gamma: 1  # default 1\n", "gamma: 0.75  # default 0.75\n"},
                                     {"learning_rate: 1e-06  # default 1e-06", "learning_rate: 3e-06  # default 3e-06"},
                                     {"k: 4  # default 4\n", "k: 2  # default 2\n"}});
  ASSERT_THAT(record, AllOf(HasSubstr("0.75"), HasSubstr("3e-06"), HasSubstr("k: 2")));
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{}, {"train.load_checkpoint=true"}, {"train.max_steps=3", "rollout.temperature=0.5"}}) {
    const RunConfig again = Again(record, overrides).value();
    EXPECT_EQ(again.algorithm().gamma(), 0.75F);
    EXPECT_EQ(again.actor().learning_rate(), 3e-6);
    EXPECT_EQ(again.eval().k(1), 2);
  }
  EXPECT_EQ(Again(record, {"algorithm.gamma=0.5"})->algorithm().gamma(), 0.5F);
  EXPECT_EQ(Again(record, {"actor.lora.r=8"})->actor().learning_rate(), 1e-5);
  // A service has what the run has.
  EXPECT_EQ(Again(record, {"services.policy_trainer.ranks=2"}, Program::kPolicyTrainer)->actor().learning_rate(), 3e-6);
}

TEST(RecordedConfig, AValueThatWasEditedIsSetThoughTheMarkIsLeft) {
  const std::string record = absl::StrReplaceAll(RecordOf(Program::kPpo, kPpoRun),
                                                 {{"learning_rate: 1e-06  # def", "learning_rate: 2e-06  # def"}});
  EXPECT_EQ(Again(record, {"actor.lora.r=8"})->actor().learning_rate(), 2e-6);
}

TEST(RecordedConfig, OnlyAMarkIsOne) {
  const RecordedConfig read =
      ReadRecordedConfig(InFile("text.textproto",
                                "run_dir: \"  # default \"\nseed: 1  # the default\n"
                                "data { label_key: \"a  # default a\" }  # default\nrollout { temperature: 1\n"
                                "top_p: 1  # default 1\n}\n"))
          .value();
  EXPECT_EQ(read.set.run_dir(), "  # default ");
  EXPECT_EQ(read.set.seed(), 1);
  EXPECT_EQ(read.set.data().label_key(), "a  # default a");
  EXPECT_TRUE(read.set.rollout().has_temperature());
  EXPECT_FALSE(read.set.rollout().has_top_p());
  EXPECT_THAT(
      std::string(ReadRecordedConfig(InFile("wrong.textproto", "seed: 1  # default 1\nsed: 2\n")).status().message()),
      HasSubstr("wrong.textproto:2"));
}

TEST(RecordedConfig, APresetGoesOverDefaults) {
  const std::string file =
      InFile("record.textproto", RecordOf(Program::kPpo, {"actor.pretrain=/m", "critic.pretrain=/m"}));
  const auto config =
      LoadRunConfig({.preset = "grpo", .file = file, .overrides = {"rollout.n_samples_per_prompt=4"}}, "");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->algorithm().advantage_estimator(), "grpo");
}

}  // namespace
}  // namespace quartet

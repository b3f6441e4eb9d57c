#include "core/config/origins/origins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "core/config/origins/presets.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string Written(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(ConfigSources, AFileGoesOverAPresetAndAnOverrideOverBoth) {
  const std::string file = Written("run.textproto",
                                   "rollout { n_samples_per_prompt: 4 temperature: 0.5 }\n"
                                   "reward { source { rule: \"number\" } source { rule: \"exact_match\" } }\n");
  const ConfigSources sources = {
      .preset = "grpo", .file = file, .overrides = {"rollout.temperature=0.75", "reward.source.1.weight=2"}};
  const RunConfig config = LoadRunConfig(sources, "").value();
  EXPECT_EQ(config.algorithm().advantage_estimator(), "grpo");
  EXPECT_EQ(config.rollout().n_samples_per_prompt(), 4);
  EXPECT_EQ(config.rollout().temperature(), 0.75f);

  const std::string text = PrintRunConfig(config, OriginsOf(sources).value());
  EXPECT_THAT(text, HasSubstr("advantage_estimator: \"grpo\"  # preset grpo\n"));
  EXPECT_THAT(text, HasSubstr("n_samples_per_prompt: 4  # " + file + "\n"));
  EXPECT_THAT(text, HasSubstr("temperature: 0.75  # --set\n"));
  EXPECT_THAT(text, HasSubstr("weight: 2  # --set\n    rule: \"exact_match\"  # " + file + "\n"));
  EXPECT_THAT(text, HasSubstr("top_p: 1  # default 1\n"));
  EXPECT_THAT(text, HasSubstr("weight: 1  # default 1\n")) << "of the first source, too";
  EXPECT_EQ(PrintRunConfig(LoadRunConfig(Written("again.textproto", text), {}, "").value()), PrintRunConfig(config));
}

TEST(ConfigSources, WhatAFileSaysOfACriticIsLeftAsideWhereThePresetHasNone) {
  const std::string file = Written("critic.textproto",
                                   "critic { pretrain: \"/m\" }\n"
                                   "algorithm { lambd: 0.9 gamma: 1 }\n"
                                   "services { critic_trainer { ranks: 2 } policy_trainer { ranks: 2 } }\n");
  const ConfigSources grpo = {.preset = "grpo", .file = file, .overrides = {"rollout.n_samples_per_prompt=4"}};
  std::vector<std::string> aside;
  const std::vector<FieldAside> fields = LeftAside(grpo).value();
  for (const FieldAside& field : fields) aside.push_back(field.path);
  EXPECT_THAT(aside, ElementsAre("critic", "services.critic_trainer", "algorithm.lambd"));
  EXPECT_EQ(
      DescribeLeftAside(grpo).value(),
      "with preset grpo left aside of " + file +
          ": critic, services.critic_trainer (there is no critic: algorithm.advantage_estimator is not \"gae\", the "
          "one that has values of states); algorithm.lambd (algorithm.advantage_estimator is \"grpo\")");
  const RunConfig config = LoadRunConfig(grpo, "").value();
  EXPECT_EQ(config.critic().pretrain(), "");
  EXPECT_EQ(config.services().policy_trainer().ranks(), 2);
  EXPECT_EQ(OriginsOf(grpo).value().count("critic.pretrain"), 0);

  EXPECT_THAT(LeftAside({.preset = "ppo", .file = file}).value(), IsEmpty());
  EXPECT_EQ(DescribeLeftAside({.preset = "ppo", .file = file}).value(), "");
  EXPECT_EQ(LoadRunConfig({.preset = "ppo", .file = file}, "").value().critic().pretrain(), "/m");
  // Whoever says it beside the preset is told.
  ConfigSources beside = grpo;
  beside.overrides.push_back("algorithm.lambd=0.5");
  EXPECT_THAT(std::string(LoadRunConfig(beside, "").status().message()), HasSubstr("algorithm.lambd has no effect"));
  // A file that chooses the method itself is not the preset's doing.
  const std::string own = Written("own.textproto", "algorithm { advantage_estimator: \"rloo\" lambd: 0.9 }\n");
  EXPECT_THAT(LeftAside({.preset = "grpo", .file = own}).value(), IsEmpty());
  EXPECT_FALSE(LoadRunConfig({.preset = "grpo", .file = own}, "").ok());
}

TEST(ConfigSources, WhatIsLeftAsideIsSoForTheReasonThatItHas) {
  const std::string file = Written("reference.textproto", "reference { pretrain: \"/m\" }\n");
  EXPECT_EQ(DescribeLeftAside({.preset = "orz", .file = file}).value(),
            "with preset orz left aside of " + file +
                ": reference (algorithm.kl.init_kl_coef is 0, so no reference model is loaded)");
}

TEST(ConfigSources, AnOriginIsTheLastThatHasSaidAValue) {
  // Both say what the preset says.
  const std::string file = Written("same.textproto",
                                   "algorithm { eps_clip: 0.2 advantage_estimator: \"grpo\" }\n"
                                   "train { num_episodes: 2 save_steps: 5 }\n");
  const ValueOrigins origins =
      OriginsOf({.preset = "grpo",
                 .file = file,
                 .overrides = {"algorithm.eps_clip=0.2", "train.max_steps=3", "train.save_steps="}})
          .value();
  EXPECT_EQ(origins.at("algorithm.advantage_estimator"), file);
  EXPECT_EQ(origins.at("algorithm.eps_clip"), "--set");
  EXPECT_EQ(origins.at("algorithm.loss_aggregation"), "preset grpo");
  EXPECT_EQ(origins.count("train.num_episodes"), 0) << "max_steps is in its place";
  EXPECT_EQ(origins.count("train.save_steps"), 0) << "which is not set any more";
}

TEST(ConfigSources, WhatIsSetLaterTakesThePlaceOfTheOtherOfAPair) {
  const std::string file =
      Written("pairs.textproto",
              "train { num_episodes: 2 train_batch_size: 32 }\n"
              "rollout { rollout_batch_size: 16 n_samples_per_prompt: 4 kv_cache_bytes: 1000000 }\n"
              "actor { lr_warmup_ratio: 0.5 max_tokens_per_micro_batch: 4096 }\n");
  const auto config =
      LoadRunConfig({.preset = "rloo",
                     .file = file,
                     .overrides = {"train.max_steps=7", "actor.lr_warmup_steps=7", "actor.micro_train_batch_size=2"}},
                    "");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->train().has_num_episodes());
  EXPECT_EQ(config->train().max_steps(), 7);
  EXPECT_EQ(config->actor().lr_warmup_steps(), 7);
  EXPECT_EQ(config->actor().micro_train_batch_size(), 2);
  EXPECT_FALSE(config->train().has_updates_per_batch()) << "the file's batch is in the place of the preset's number";
  // One who says both of them is told.
  EXPECT_THAT(std::string(LoadRunConfig({.file = file, .overrides = {"train.max_steps=7", "train.num_episodes=1"}}, "")
                              .status()
                              .message()),
              HasSubstr("train.num_episodes has no effect: train.max_steps is set"));
}

TEST(ConfigSources, APresetOfWhichAFileLeavesNothingIsRefused) {
  const auto error = [](const std::string& preset, const std::string& file) {
    return std::string(LoadRunConfig({.preset = preset, .file = file}, "").status().message());
  };
  const auto run = [](const std::string& preset) {
    return Written(preset + "_run.textproto", PrintRunConfig(LoadRunConfig({.preset = preset}, "").value()));
  };
  EXPECT_THAT(error("dr_grpo", run("grpo")), AllOf(::testing::StartsWith("--preset is dr_grpo, and has no effect: "),
                                                   HasSubstr("give the file that the run was started with")));
  EXPECT_EQ(error("grpo", Written("own.textproto", "algorithm { eps_clip: 0.3 }\n")), "");
}

TEST(ConfigSources, APresetOfAnotherMethodThanAFileSetsIsRefused) {
  const std::string file = Written("own.textproto", "algorithm { advantage_estimator: \"grpo\" }\n");
  const std::string set = "algorithm.advantage_estimator=rloo";
  EXPECT_THAT(std::string(LoadRunConfig({.preset = "rloo", .file = file}, "").status().message()),
              AllOf(::testing::StartsWith("--preset is rloo, whose algorithm.advantage_estimator is \"rloo\""),
                    HasSubstr("own.textproto sets \"grpo\"")));
  EXPECT_EQ(LoadRunConfig({.preset = "rloo", .file = file, .overrides = {set}}, "")->algorithm().advantage_estimator(),
            "rloo");
  EXPECT_EQ(LoadRunConfig({.preset = "dapo", .file = file}, "")->algorithm().advantage_estimator(), "grpo");
}

// It is given the file of a whole run, of which it reads its part.
TEST(ConfigSources, AnEvaluationRefusesWhatIsSetForItAndIsNotRead) {
  const auto error = [](const std::string& file, const std::vector<std::string>& overrides) {
    return std::string(
        LoadRunConfig({.file = file, .overrides = overrides, .program = Program::kEvaluate}, "").status().message());
  };
  std::vector<std::string> all = {"rollout.temperature=0.5",
                                  "rollout.n_samples_per_prompt=2",
                                  "data.prompt_data=/d",
                                  "data.max_samples=1",
                                  "sft.data=/d",
                                  "preference.beta=1",
                                  "actor.learning_rate=1",
                                  "actor.ema_decay=0.5",
                                  "actor.dtype=fp32",
                                  "actor.zero_stage=2",
                                  "critic.pretrain=/m",
                                  "reference.pretrain=/m",
                                  "algorithm.gamma=1",
                                  "algorithm.kl.init_kl_coef=0.5",
                                  "train.eval_steps=1",
                                  "train.max_steps=1",
                                  "train.keep_batches=1",
                                  "monitor.listen=127.0.0.1:0",
                                  "services.policy_trainer.ranks=2"};
  for (const std::string& set : all) {
    EXPECT_THAT(error("", {set}), ::testing::StartsWith(set.substr(0, set.find('=')) + " has no effect: ")) << set;
  }
  RunConfig run;
  ASSERT_TRUE(ApplyOverrides(all, &run).ok());
  EXPECT_EQ(error(Written("of_a_run.textproto", PrintRunConfig(run)), {}), "");
  EXPECT_EQ(
      error("", {"actor.pretrain=/m", "actor.max_len=9", "eval.data=/d", "eval.temperature=1",
                 "rollout.generate_max_len=9", "rollout.stop_token_ids=1", "data.input_key=q", "data.source_key=s",
                 "reward.source.0.rule=number", "train.call_timeout_seconds=5", "services.rollout.ranks=2", "seed=5"}),
      "");
}

TEST(ConfigSources, AnEmptyValueUnsetsAFieldAListOrAGroup) {
  const std::string file = Written("set.textproto",
                                   "train { max_steps: 7 num_episodes: 0 }\nrollout { temperature: 0.5 }\n"
                                   "data { prompt_data: \"a\" }\nreward { source { rule: \"number\" } }\n"
                                   "critic { pretrain: \"/m\" learning_rate: 1e-5 }\n");
  const auto config = LoadRunConfig(
      {.file = file,
       .overrides = {"train.max_steps=", "train.num_episodes=3",
                     "rollout.temperature=", "data.prompt_data=", "reward.source=", "critic=", "critic.pretrain=/n"}},
      "");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->train().num_episodes(), 3);
  EXPECT_EQ(config->train().max_steps(), 0);
  EXPECT_EQ(config->rollout().temperature(), 1) << "the default";
  EXPECT_EQ(config->data().prompt_data_size(), 0);
  EXPECT_EQ(config->reward().source_size(), 0);
  EXPECT_EQ(config->critic().pretrain(), "/n");
}

TEST(ConfigSources, AnErrorOfAPresetsValueNamesThePresetAndTheWayOut) {
  const std::string file = Written("few.textproto",
                                   "rollout { rollout_batch_size: 2 n_samples_per_prompt: 4 }\n"
                                   "train { max_steps: 10 }\n");
  const ConfigSources sources = {.preset = "dapo", .file = file};
  EXPECT_THAT(std::string(LoadRunConfig(sources, "").status().message()),
              AllOf(HasSubstr("train.updates_per_batch: 16 is not allowed; "),
                    HasSubstr("; preset dapo says it: the file's train.updates_per_batch or "
                              "--set=train.updates_per_batch=VALUE goes over that")));
  ConfigSources over = sources;
  over.overrides = {"train.updates_per_batch=16"};
  EXPECT_THAT(std::string(LoadRunConfig(over, "").status().message()), Not(HasSubstr("preset dapo")));
}

// As README.md's first configuration, which is one of PPO.
TEST(ConfigSources, EveryPresetTakesAFileOfPpo) {
  const std::string file = Written("ppo.textproto",
                                   "data { prompt_data: \"d.jsonl\" prompt_max_len: 512 }\n"
                                   "actor { pretrain: \"/m\" learning_rate: 1e-6 }\n"
                                   "critic { pretrain: \"/m\" learning_rate: 9e-6 }\n"
                                   "rollout { rollout_batch_size: 16 n_samples_per_prompt: 4 generate_max_len: 128 }\n"
                                   "reward { source { rule: \"number\" } }\ntrain { max_steps: 10 }\n"
                                   "services { policy_trainer { ranks: 2 } critic_trainer { ranks: 2 } }\n");
  for (const Preset& preset : Presets()) {
    const auto config = LoadRunConfig({.preset = std::string(preset.name), .file = file}, "");
    ASSERT_TRUE(config.ok()) << preset.name << ": " << config.status();
    EXPECT_EQ(CheckFor(*config, Program::kPpo).message(), "") << preset.name;
  }
}

TEST(CheckSaysRunDir, IsOfFileOrOverrideAlone) {
  const std::string without = Written("without.textproto", "seed: 1\n");
  const auto error = [](const ConfigSources& sources) {
    return std::string(CheckSaysRunDir(OriginsOf(sources).value()).message());
  };
  EXPECT_THAT(error({.file = without}), HasSubstr("run_dir is not set"));
  EXPECT_EQ(error({.file = without, .overrides = {"run_dir=runs/a"}}), "");
  EXPECT_EQ(error({.file = Written("with.textproto", "run_dir: \"runs/a\"\n")}), "");
}

TEST(CheckHostsAreChosen, NamesWhatWouldHaveNoEffect) {
  const auto error = [](const std::vector<std::string>& overrides, bool chooses_ports) {
    return std::string(
        CheckHostsAreChosen("Ray", chooses_ports, OriginsOf({.overrides = overrides}).value()).message());
  };
  EXPECT_EQ(error({"cluster.num_nodes=1"}, true), "");
  EXPECT_EQ(error({"services.scorer.listen=0.0.0.0:7"}, false), "");
  EXPECT_EQ(error({"services.scorer.listen=0.0.0.0:7"}, true),
            "services.scorer.listen is set, but it is Ray that chooses the host and the port; leave it out");
  EXPECT_EQ(error({"cluster.node_names=a"}, false),
            "cluster.node_names is set, but it is Ray that chooses the hosts; leave it out");
}

TEST(Presets, AreWholeConfigurationsOnceTheModelsAndTheDataAreNamed) {
  EXPECT_EQ(Presets().size(), 9);
  for (const Preset& preset : Presets()) {
    SCOPED_TRACE(preset.name);
    ConfigSources sources = {
        .preset = std::string(preset.name),
        .overrides = {"data.prompt_data=d.jsonl", "actor.pretrain=m", "reward.source.0.rule=number"}};
    absl::StatusOr<RunConfig> config = LoadRunConfig(sources, "");
    ASSERT_TRUE(config.ok()) << config.status();
    if (UsesCritic(*config)) {
      sources.overrides.push_back("critic.pretrain=m");
      config = LoadRunConfig(sources, "");
    }
    EXPECT_EQ(CheckFor(*config, Program::kPpo).message(), "");
    EXPECT_THAT(DescribePresets(), HasSubstr("  " + sources.preset + " "));
  }
}

TEST(Presets, AreNamedWhereAnotherIsAskedFor) {
  const absl::Status status = LoadRunConfig({.preset = "gropo"}, "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--preset is \"gropo\"; there are: dapo, distill, dr_grpo, grpo, gspo"));
}

}  // namespace
}  // namespace quartet

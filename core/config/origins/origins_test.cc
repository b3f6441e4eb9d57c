#include "core/config/origins/origins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "core/config/origins/presets.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
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
  EXPECT_THAT(text, HasSubstr("top_p: 1\n")) << "a default";
  EXPECT_THAT(text, HasSubstr("weight: 1\n")) << "of the first source, too";
  EXPECT_EQ(PrintRunConfig(LoadRunConfig(Written("again.textproto", text), {}, "").value()), PrintRunConfig(config));
}

TEST(ConfigSources, WhatAFileSaysOfACriticIsLeftAsideWhereThePresetHasNone) {
  const std::string file = Written("critic.textproto",
                                   "critic { pretrain: \"/m\" }\n"
                                   "algorithm { lambd: 0.9 gamma: 1 }\n"
                                   "services { critic_trainer { ranks: 2 } policy_trainer { ranks: 2 } }\n");
  const ConfigSources grpo = {.preset = "grpo", .file = file, .overrides = {"rollout.n_samples_per_prompt=4"}};
  EXPECT_THAT(LeftAside(grpo).value(), ElementsAre("critic", "services.critic_trainer", "algorithm.lambd"));
  const RunConfig config = LoadRunConfig(grpo, "").value();
  EXPECT_EQ(config.critic().pretrain(), "");
  EXPECT_EQ(config.services().policy_trainer().ranks(), 2);
  EXPECT_EQ(OriginsOf(grpo).value().count("critic.pretrain"), 0);

  EXPECT_THAT(LeftAside({.preset = "ppo", .file = file}).value(), ElementsAre());
  EXPECT_EQ(LoadRunConfig({.preset = "ppo", .file = file}, "").value().critic().pretrain(), "/m");
  // Whoever says it beside the preset is told.
  ConfigSources beside = grpo;
  beside.overrides.push_back("algorithm.lambd=0.5");
  EXPECT_THAT(std::string(LoadRunConfig(beside, "").status().message()), HasSubstr("algorithm.lambd has no effect"));
  // A file that chooses the method itself is not the preset's doing.
  const std::string own = Written("own.textproto", "algorithm { advantage_estimator: \"rloo\" lambd: 0.9 }\n");
  EXPECT_THAT(LeftAside({.preset = "grpo", .file = own}).value(), ElementsAre());
  EXPECT_FALSE(LoadRunConfig({.preset = "grpo", .file = own}, "").ok());
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
  EXPECT_EQ(Presets().size(), 8);
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
  EXPECT_THAT(std::string(status.message()), HasSubstr("--preset is \"gropo\"; there are: dapo, dr_grpo, grpo, gspo"));
}

}  // namespace
}  // namespace quartet

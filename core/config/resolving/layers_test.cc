#include "core/config/resolving/layers.h"

#include <gtest/gtest.h>

#include <string>

#include "core/config/run_config.h"

namespace quartet {
namespace {

ConfigLayers Layers() {
  ConfigLayers layers = {.overrides = {"rollout.temperature=0.25"}};
  for (RunConfig* const layer : {&layers.defaults, &layers.preset, &layers.file.set}) {
    layer->mutable_rollout()->set_temperature(1);
  }
  layers.defaults.mutable_services()->mutable_scorer()->set_listen("127.0.0.1:0");
  layers.defaults.set_seed(1);
  layers.preset.set_seed(2);
  layers.preset.mutable_rollout()->set_top_p(0.5);
  layers.file.set.mutable_rollout()->set_top_p(0.75);
  return layers;
}

TEST(ConfigLayers, TheLaterGoesOverTheEarlier) {
  const RunConfig config = LoadRunConfig(Layers(), "", Program::kPpo).value();
  EXPECT_EQ(config.services().scorer().listen(), "127.0.0.1:0");
  EXPECT_EQ(config.seed(), 2);
  EXPECT_EQ(config.rollout().top_p(), 0.75F);
  EXPECT_EQ(config.rollout().temperature(), 0.25F);
}

TEST(ConfigLayers, WhatIsSetTakesAwayWhatItIsInThePlaceOf) {
  ConfigLayers layers = Layers();
  layers.preset.mutable_train()->set_num_episodes(3);
  layers.file.set.mutable_train()->set_max_steps(7);
  const RunConfig config = LoadRunConfig(layers, "", Program::kPpo).value();
  EXPECT_FALSE(config.train().has_num_episodes());
  layers.overrides.push_back("train.num_episodes=2");
  EXPECT_EQ(LoadRunConfig(layers, "", Program::kPpo)->train().max_steps(), 0);
}

TEST(ConfigLayers, OnlyWhatAUserWritesIsRefusedForWantOfAnEffect) {
  ConfigLayers layers = Layers();
  layers.defaults.mutable_algorithm()->mutable_kl()->set_kl_horizon(5);
  EXPECT_TRUE(LoadRunConfig(layers, "", Program::kPpo).ok());
  layers.overrides.push_back("algorithm.kl.kl_horizon=5");
  EXPECT_FALSE(LoadRunConfig(layers, "", Program::kPpo).ok());
}

// Of a list that somebody else has begun.
TEST(ConfigLayers, AnOverrideThatCannotBeToldAloneIsLeftOut) {
  RunConfig alone;
  ApplyAlone({"reward.source.1.weight=2", "seed=3"}, &alone);
  EXPECT_EQ(alone.seed(), 3);
  EXPECT_EQ(alone.reward().source_size(), 0);
}

}  // namespace
}  // namespace quartet

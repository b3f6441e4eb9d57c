#include "core/checkpoint/state_use.h"

#include <gtest/gtest.h>

#include <string>

namespace quartet {
namespace {

TEST(CheckGoesOnFrom, NamesTheOptionThatTheStateIsNotOf) {
  StateManifest manifest;
  manifest.kinds = {"master", "exp_avg", "exp_avg_sq"};
  const auto error = [&](const std::string& optimizer, bool has_average) {
    const absl::Status status = CheckGoesOnFrom(manifest, "run/critic_state", optimizer, has_average, "critic");
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error("adam", false), "");
  EXPECT_EQ(error("sgd", false),
            "critic.optim: \"sgd\" is not allowed; training goes on from run/critic_state, which is of the optimizer "
            "\"adam\" (it has master, exp_avg, exp_avg_sq): set it to \"adam\", or begin anew from the model that was "
            "saved with it");
  EXPECT_EQ(error("adam", true),
            "critic.ema_decay: only 0 is allowed; training goes on from run/critic_state, which has no average of the "
            "weights (it has master, exp_avg, exp_avg_sq): set it to 0, or begin anew from the model that was saved "
            "with it");
  manifest.kinds.push_back("ema");
  EXPECT_EQ(error("adam", true), "");
  EXPECT_EQ(error("adam", false), "") << "an average may be given up";
}

StateManifest StateOfAdapters() {
  StateManifest manifest;
  for (const std::string block : {"0", "1"}) {
    for (const std::string product : {"self_attn.q_proj", "mlp.up_proj"}) {
      const std::string module = "base_model.model.model.layers." + block + "." + product;
      manifest.parameters.push_back({module + ".lora_A.weight", {4, 8}});
      manifest.parameters.push_back({module + ".lora_B.weight", {8, 4}});
    }
  }
  manifest.parameters.push_back({"base_model.model.score.weight", {1, 8}});
  return manifest;
}

AdapterConfig TheirConfig() {
  AdapterConfig adapters;
  adapters.r = 4;
  adapters.targets = {"up_proj", "q_proj"};
  adapters.base_folder = "models/base";
  return adapters;
}

std::string SameAdaptersError(const StateManifest& manifest, const std::optional<AdapterConfig>& adapters) {
  const absl::Status status = CheckStateOfSameAdapters(manifest, "run/state", adapters, "actor");
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(CheckStateOfSameAdapters, RefusesAnotherRankAndOtherProducts) {
  const StateManifest manifest = StateOfAdapters();
  AdapterConfig adapters = TheirConfig();
  EXPECT_EQ(SameAdaptersError(manifest, adapters), "");
  adapters.r = 8;
  EXPECT_EQ(SameAdaptersError(manifest, adapters),
            "actor.lora.r: 8 is not allowed; training goes on from run/state, whose adapters have 4: set it so");
  adapters.r = 4;
  adapters.targets = {"q_proj"};
  EXPECT_EQ(SameAdaptersError(manifest, adapters),
            "actor.lora.target_modules: q_proj is not allowed; training goes on from run/state, whose adapters are of "
            "q_proj,up_proj: set it so");
}

TEST(CheckStateOfSameAdapters, TellsAdaptersFromAWholeModel) {
  EXPECT_EQ(
      SameAdaptersError(StateOfAdapters(), std::nullopt),
      "actor.lora: nothing is not allowed; training goes on from run/state, which is of adapters: set lora.r to 4 "
      "and lora.target_modules to q_proj,up_proj");
  StateManifest whole;
  whole.parameters = {{"model.layers.0.self_attn.q_proj.weight", {8, 8}}};
  EXPECT_EQ(SameAdaptersError(whole, std::nullopt), "");
  EXPECT_EQ(SameAdaptersError(whole, TheirConfig()),
            "actor.lora: a value is not allowed; training goes on from run/state, which is of a whole model: leave it "
            "out");
}

TEST(CheckStateOfSameAdapters, RefusesAdaptersOfAModelThatIsAnotherNow) {
  StateManifest manifest = StateOfAdapters();
  AdapterConfig adapters = TheirConfig();
  manifest.base_hash = 1;
  EXPECT_EQ(SameAdaptersError(manifest, adapters), "");
  adapters.base_hash = 1;
  EXPECT_EQ(SameAdaptersError(manifest, adapters), "");
  adapters.base_hash = 2;
  EXPECT_EQ(SameAdaptersError(manifest, adapters),
            "actor.load_checkpoint: the training state in run/state belongs to another model than is in models/base "
            "now: of weights and config.json that has the hash 0000000000000002, its own model 0000000000000001. Put "
            "that model back, or train the adapters that were saved with the state on in a run of their own");
}

TEST(CheckStateOfSameAdapters, RefusesAdaptersThatAreAddedTimesSomethingElse) {
  StateManifest manifest = StateOfAdapters();
  AdapterConfig adapters = TheirConfig();
  adapters.scale = 16;
  adapters.alpha = 64;
  EXPECT_EQ(SameAdaptersError(manifest, adapters), "") << "the state does not say it";
  manifest.adapter_scale = 2;
  EXPECT_EQ(SameAdaptersError(manifest, adapters),
            "actor.lora.alpha: 64 is not allowed; training goes on from run/state, whose adapters are added times 2 "
            "(alpha / r; with use_rslora alpha / sqrt(r)), and these would be times 16: set it and lora.use_rslora as "
            "they were");
  adapters.scale = 2;
  EXPECT_EQ(SameAdaptersError(manifest, adapters), "");
}

}  // namespace
}  // namespace quartet

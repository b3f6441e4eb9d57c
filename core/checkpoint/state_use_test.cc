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

TEST(CheckStateOfSameAdapters, RefusesAdaptersOfAModelWhoseWeightsAreOthersNow) {
  StateManifest manifest;
  AdapterConfig adapters;
  adapters.base_folder = "models/base";
  const auto error = [&] {
    return std::string(CheckStateOfSameAdapters(manifest, "run/policy_state", adapters).message());
  };
  EXPECT_EQ(error(), "");
  manifest.base_hash = 1;
  EXPECT_EQ(error(), "");
  adapters.base_hash = 1;
  EXPECT_EQ(error(), "");
  adapters.base_hash = 2;
  EXPECT_EQ(error(),
            "the training state in run/policy_state belongs to another model than is in models/base now: the weights "
            "there have the hash 0000000000000002, those of its own model 0000000000000001. Put that model back, or "
            "train the adapters that were saved with the state on in a run of their own");
  EXPECT_TRUE(CheckStateOfSameAdapters(manifest, "run/policy_state", std::nullopt).ok());
}

TEST(CheckStateOfSameAdapters, RefusesAdaptersThatAreAddedTimesSomethingElse) {
  StateManifest manifest;
  AdapterConfig adapters;
  adapters.scale = 16;
  EXPECT_TRUE(CheckStateOfSameAdapters(manifest, "run/policy_state", adapters).ok()) << "the state does not say it";
  manifest.adapter_scale = 2;
  EXPECT_EQ(std::string(CheckStateOfSameAdapters(manifest, "run/policy_state", adapters).message()),
            "the training state in run/policy_state is of adapters that are added times 2 (alpha / r; with use_rslora "
            "alpha / sqrt(r)), and these are added times 16: set lora.alpha and lora.use_rslora as they were");
  adapters.scale = 2;
  EXPECT_TRUE(CheckStateOfSameAdapters(manifest, "run/policy_state", adapters).ok());
}

}  // namespace
}  // namespace quartet

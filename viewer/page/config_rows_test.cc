#include "viewer/page/config_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/config/origins/origins.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

std::map<std::string, ConfigRow> ByPath(const std::string& text) {
  std::map<std::string, ConfigRow> rows;
  for (ConfigRow& row : ReadConfigRows(text)) rows[row.path] = std::move(row);
  return rows;
}

TEST(ConfigRows, SayWhatDiffersAndWhereItIsFrom) {
  const ConfigSources sources = {.preset = "grpo",
                                 .overrides = {"rollout.temperature=0.7", "reward.source.0.rule=number",
                                               "reward.source.1.rule=regex", "reward.source.1.pattern=#\"x\"",
                                               "data.prompt_data=a,b", "actor.learning_rate=1e-6", "rollout.top_p=1"}};
  const RunConfig config = LoadRunConfig(sources, "/base").value();
  const auto rows = ByPath(PrintRunConfig(config, OriginsOf(sources).value()));
  EXPECT_EQ(rows.at("rollout.temperature").value, "0.7");
  EXPECT_EQ(rows.at("rollout.temperature").by_default, "1");
  EXPECT_EQ(rows.at("rollout.temperature").origin, "--set");
  EXPECT_TRUE(rows.at("rollout.temperature").differs);
  EXPECT_EQ(rows.at("algorithm.advantage_estimator").origin, "preset grpo");
  EXPECT_EQ(rows.at("reward.source.1.pattern").value, "#\"x\"");
  EXPECT_EQ(rows.at("reward.source.0.rule").value, "number");
  EXPECT_TRUE(rows.at("actor.learning_rate").differs) << "somebody has set it";
  EXPECT_FALSE(rows.at("rollout.top_p").differs) << "somebody has set it to its default";
  EXPECT_EQ(rows.at("rollout.top_p").origin, "--set");
  EXPECT_FALSE(rows.at("rollout.block_size").differs);
  EXPECT_EQ(rows.at("rollout.block_size").by_default, "16");
  EXPECT_FALSE(rows.at("actor.max_len").differs) << "it depends on other fields";
  EXPECT_EQ(rows.at("actor.max_len").origin, "") << "a default has none";
  EXPECT_TRUE(ByPath("actor {\n  max_len: 7  # default 8\n}\n").at("actor.max_len").differs) << "it was edited";
  EXPECT_FALSE(rows.at("actor.max_len").by_default.has_value());
}

TEST(ConfigRows, WithoutOriginsShowWhatHasNoDefault) {
  const RunConfig config =
      LoadRunConfig("", {"actor.pretrain=/m", "algorithm.eps_clip=0.3", "reward.source.0.rule=number"}, "").value();
  const auto rows = ByPath(PrintRunConfig(config));
  EXPECT_TRUE(rows.at("actor.pretrain").differs);
  EXPECT_TRUE(rows.at("algorithm.eps_clip").differs);
  EXPECT_FALSE(rows.at("algorithm.value_clip").differs) << rows.at("algorithm.value_clip").value;
  EXPECT_FALSE(rows.at("actor.max_len").differs);
}

TEST(ConfigRows, OfWhatIsNoConfigurationThereAreNone) {
  EXPECT_TRUE(ReadConfigRows("").empty());
  EXPECT_TRUE(ReadConfigRows("}\n}\n\"\n").empty());
}

}  // namespace
}  // namespace quartet

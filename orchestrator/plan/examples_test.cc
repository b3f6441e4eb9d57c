// The examples' plans, from the models' config.json alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>

#include "core/config/run_config.h"
#include "orchestrator/plan/plan.h"

namespace quartet {
namespace {

const std::vector<std::string> kAll = {"rollout", "policy_trainer", "critic_trainer", "scorer"};

struct Example {
  std::string name;
  std::vector<std::string> services;
  std::vector<std::string> overrides;
  bool fits;
};
std::ostream& operator<<(std::ostream& out, const Example& example) { return out << example.name; }

class ExamplePlan : public ::testing::TestWithParam<Example> {};

TEST_P(ExamplePlan, FitsOrNot) {
  const auto config = LoadRunConfig("examples/" + GetParam().name + ".textproto", GetParam().overrides,
                                    std::filesystem::current_path().string());
  ASSERT_TRUE(config.ok()) << config.status();
  Planner planner(GetParam().services, DefaultOutsideTensors());
  const auto plan = planner.MakePlan(*config);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->devices.size(), 1);
  EXPECT_EQ(plan->devices[0].count, config->cluster().num_nodes() * config->cluster().num_gpus_per_node());
  EXPECT_EQ(plan->fits(), GetParam().fits) << plan->devices[0].bytes << " of " << plan->devices[0].capacity;
  if (plan->fits()) return;
  const auto suggestions = planner.Suggest(*config, *plan);
  ASSERT_TRUE(suggestions.ok()) << suggestions.status();
  EXPECT_FALSE(suggestions->empty());
}

INSTANTIATE_TEST_SUITE_P(
    Examples, ExamplePlan,
    ::testing::Values(Example{"llama3_70b_4x8", {"policy_trainer"}, {}, true},
                      Example{"qwen2.5_1.5b_4gpus", kAll, {}, true},
                      Example{"qwen2.5_1.5b_4gpus", kAll, {"rollout.gpu_memory_utilization=0.9"}, false},
                      Example{"qwen2.5_32b_2x8", {"policy_trainer", "critic_trainer"}, {}, true},
                      Example{"qwen2.5_7b_1x8", kAll, {}, true},
                      Example{"qwen2.5_14b_hybrid_8x8", {"policy_trainer"}, {}, true}));

}  // namespace
}  // namespace quartet

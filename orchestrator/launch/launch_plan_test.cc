#include "orchestrator/launch/launch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/config/run_config.h"
#include "core/service/process/launcher.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using Strings = std::vector<std::string>;

std::vector<RankLaunch> PlanOf(const RunConfig& config, const Strings& services, const HostTopology& topology) {
  const auto plan = MakeLaunchPlan(config, services, topology, "/opt/quartet", {"--config=/run.textproto"});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.value_or(std::vector<RankLaunch>());
}

std::vector<RankLaunch> PlanOf(const RunConfig& config, const Strings& services) {
  return PlanOf(config, services, TopologyOf(config.cluster()));
}

RunConfig Load(const Strings& overrides, const std::string& file = "") {
  const auto config = LoadRunConfig(file, overrides, "");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(RunConfig());
}

// Ranks by "node:gpus", and how many there are.
std::map<std::string, int> Places(const std::vector<RankLaunch>& plan, const std::string& service) {
  std::map<std::string, int> places;
  for (const RankLaunch& rank : plan) {
    if (rank.service == service) ++places[absl::StrCat(rank.node, ":", rank.environment.at("CUDA_VISIBLE_DEVICES"))];
  }
  return places;
}

constexpr char kEight[] = "0,1,2,3,4,5,6,7";

TEST(LaunchPlan, Llama3WithSeventyBillionParametersIsOnFourNodesOfEight) {
  const RunConfig config = Load({}, "examples/llama3_70b_4x8.textproto");
  const auto plan = PlanOf(config, {"policy_trainer"});
  ASSERT_EQ(plan.size(), 32u);
  EXPECT_THAT(Places(plan, "policy_trainer"),
              ElementsAre(Pair(absl::StrCat("1:", kEight), 8), Pair(absl::StrCat("2:", kEight), 8),
                          Pair(absl::StrCat("3:", kEight), 8), Pair(absl::StrCat("4:", kEight), 8)));
  EXPECT_EQ(plan[11].environment.at("RANK"), "11");
  EXPECT_EQ(plan[11].environment.at("LOCAL_RANK"), "3");
  EXPECT_EQ(plan[11].environment.at("LOCAL_WORLD_SIZE"), "8");
  EXPECT_EQ(plan[11].environment.at("WORLD_SIZE"), "32");
  EXPECT_THAT(plan[11].cores, IsEmpty()) << "nothing is said of cores";
}

TEST(LaunchPlan, Qwen25WithThirtyTwoBillionParametersIsOnTwoNodesOfEight) {
  const auto plan = PlanOf(Load({}, "examples/qwen2.5_32b_2x8.textproto"), {"policy_trainer", "critic_trainer"});
  for (const char* service : {"policy_trainer", "critic_trainer"}) {
    EXPECT_THAT(Places(plan, service),
                ElementsAre(Pair(absl::StrCat("0:", kEight), 8), Pair(absl::StrCat("1:", kEight), 8)));
  }
}

TEST(LaunchPlan, AllFourServicesShareFourGpus) {
  const auto plan = PlanOf(Load({}, "examples/qwen2.5_1.5b_4gpus.textproto"), kServiceNames);
  for (const std::string& service : kServiceNames) {
    EXPECT_THAT(Places(plan, service), ElementsAre(Pair("0:0,1,2,3", 4)));
  }
}

TEST(LaunchPlan, GivesARankOnAGpuItsPartOfTheCoresBesideIt) {
  const RunConfig config = Load({"cluster.num_nodes=2", "cluster.num_gpus_per_node=4", "cluster.num_cpus_per_node=16",
                                 "cluster.num_numa_nodes=2", "cluster.node_names=head,other", "services.device=cuda",
                                 "services.policy_trainer.num_nodes=2", "services.policy_trainer.num_gpus_per_node=2",
                                 "services.rollout.num_gpus_per_node=1", "services.critic_trainer.num_gpus_per_node=1",
                                 "services.scorer.num_gpus_per_node=1"});
  const auto plan = PlanOf(config, {"policy_trainer", "scorer"});
  ASSERT_EQ(plan.size(), 5u);
  EXPECT_EQ(plan[1].host, "head");
  EXPECT_EQ(plan[1].gpu, 1);
  EXPECT_EQ(plan[1].numa_node, 0);
  EXPECT_THAT(plan[1].cores, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(plan[2].host, "other");
  EXPECT_EQ(plan[2].environment.at("MASTER_ADDR"), "head");
  EXPECT_EQ(plan[2].environment.at("LOCAL_RANK"), "0");
  EXPECT_EQ(plan[4].service, "scorer");
  EXPECT_EQ(plan[4].numa_node, plan[4].gpu / 2);
  EXPECT_EQ(plan[4].environment.count("MASTER_ADDR"), 0u) << "it is on one node";
  EXPECT_THAT(plan[4].command, ElementsAre("/opt/quartet/scorer/scorer", "--config=/run.textproto"));
}

TEST(LaunchPlan, BindsRanksOnCpusWhereTheHostHasSeveralNumaNodes) {
  const RunConfig config = Load({"services.policy_trainer.ranks=4", "services.rollout.ranks=3"});
  const HostTopology two = EvenTopology(8, 2, 0);
  const auto plan = PlanOf(config, {"policy_trainer", "rollout"}, two);
  ASSERT_EQ(plan.size(), 7u);
  EXPECT_THAT(plan[0].cores, ElementsAre(0, 1));
  EXPECT_THAT(plan[1].cores, ElementsAre(2, 3));
  EXPECT_THAT(plan[3].cores, ElementsAre(6, 7));
  EXPECT_EQ(plan[3].numa_node, 1);
  EXPECT_THAT(EnvironmentOf(plan, "policy_trainer"), ElementsAre(Pair(std::string(kRankCores), "0-1;2-3;4-5;6-7")));
  EXPECT_THAT(EnvironmentOf(plan, "rollout"), IsEmpty()) << "three ranks do not divide evenly";
  for (const RankLaunch& rank : PlanOf(config, {"policy_trainer"}, EvenTopology(8, 1, 0))) {
    EXPECT_THAT(rank.cores, IsEmpty());
  }
}

TEST(LaunchPlan, KeepsToTheGpusThatAreVisibleAlready) {
  const RunConfig config = Load({"cluster.num_gpus_per_node=4", "cluster.num_cpus_per_node=8", "services.device=cuda",
                                 "placement.0.service=scorer", "placement.0.gpus=1,2"});
  auto plan = PlanOf(config, {"scorer"});
  EXPECT_THAT(EnvironmentOf(plan, "scorer"),
              UnorderedElementsAre(Pair("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), Pair("CUDA_VISIBLE_DEVICES", "1,2"),
                                   Pair(std::string(kRankCores), "2-3;4-5")));
  WithinVisibleGpus("GPU-a,GPU-b,GPU-c,GPU-d", {}, {}, &plan);
  EXPECT_THAT(EnvironmentOf(plan, "scorer"), ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "GPU-b,GPU-c")));
}

TEST(LaunchPlan, BindsRanksBesideTheGpusThatAreVisibleAlready) {
  const RunConfig config = Load({"cluster.num_gpus_per_node=2", "services.scorer.device=cuda"});
  HostTopology topology = EvenTopology(16, 2, 4);  // GPUs 2 and 3 are on the second NUMA node
  topology.gpu_addresses = {"0000:1b:00.0", "0000:3b:00.0", "0000:9b:00.0", "0000:bb:00.0"};
  const auto seen = [&](const std::string& visible, const std::vector<std::string>& addresses) {
    auto plan = PlanOf(config, {"scorer"}, topology);
    WithinVisibleGpus(visible, addresses, topology, &plan);
    return EnvironmentOf(plan, "scorer");
  };
  EXPECT_THAT(seen("2,3", {"0000:9b:00.0", "0000:bb:00.0"}),
              UnorderedElementsAre(Pair("CUDA_VISIBLE_DEVICES", "2,3"), Pair(std::string(kRankCores), "8-11;12-15")));
  EXPECT_THAT(
      seen("GPU-x,GPU-y", {"0000:bb:00.0", "0000:1b:00.0"}),
      UnorderedElementsAre(Pair("CUDA_VISIBLE_DEVICES", "GPU-x,GPU-y"), Pair(std::string(kRankCores), "12-15;0-3")));
  for (const std::vector<std::string>& unknown :
       {std::vector<std::string>{"0000:9b:00.0"}, {"0000:9b:00.0", ""}, {"0000:9b:00.0", "0000:ff:00.0"}}) {
    EXPECT_EQ(seen("2,3", unknown).count(kRankCores), 0u) << "one of them is not known";
  }
}

TEST(LaunchPlan, BindsNoRankWhereThePlaceOfOneGpuIsNotKnown) {
  const RunConfig config = Load({"cluster.num_gpus_per_node=2", "services.scorer.device=cuda",
                                 "services.rollout.device=cuda", "placement.0.service=rollout", "placement.0.gpus=0"});
  HostTopology topology = EvenTopology(8, 2, 2);
  topology.gpu_numa[1] = -1;
  const auto plan = PlanOf(config, {"scorer", "rollout"}, topology);
  EXPECT_EQ(EnvironmentOf(plan, "scorer").count(kRankCores), 0u);
  EXPECT_EQ(EnvironmentOf(plan, "rollout").at(kRankCores), "0-3");
}

TEST(LaunchPlan, IsJsonForWhoeverStartsTheRanks) {
  const RunConfig config = Load({"cluster.num_gpus_per_node=2", "cluster.num_cpus_per_node=4", "cluster.node_names=n1",
                                 "services.scorer.device=cuda"});
  const nlohmann::json ranks = nlohmann::json::parse(LaunchPlanAsJson(PlanOf(config, {"scorer", "rollout"})));
  ASSERT_EQ(ranks.size(), 3u);
  EXPECT_EQ(ranks[1], nlohmann::json::parse(R"({
    "service": "scorer", "rank": 1, "node": 0, "host": "n1", "gpus": [1], "numa_node": 0, "cores": "2-3",
    "environment": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_RANK": "1",
                    "LOCAL_WORLD_SIZE": "2", "QUARTET_OWN_CORES": "1", "RANK": "1", "WORLD_SIZE": "2"},
    "command": ["/opt/quartet/scorer/scorer", "--config=/run.textproto"]})"));
  EXPECT_EQ(ranks[2]["gpus"], nlohmann::json::array());
  EXPECT_EQ(ranks[2]["cores"], "");
  EXPECT_TRUE(ranks[2]["numa_node"].is_null());
}

}  // namespace
}  // namespace quartet

#include "core/config/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Strings = std::vector<std::string>;

// With all services on GPUs of `nodes` x `gpus`.
absl::StatusOr<RunConfig> OnCluster(int nodes, int gpus, const Strings& more) {
  Strings overrides = {absl::StrCat("cluster.num_nodes=", nodes), absl::StrCat("cluster.num_gpus_per_node=", gpus),
                       "services.device=cuda"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return LoadRunConfig("", overrides, "");
}

// "node:gpu node:gpu" of a service's ranks.
std::string Places(const RunConfig& config, const std::string& service) {
  std::string text;
  const auto placed = PlaceRanks(config);
  if (!placed.ok()) return std::string(placed.status().message());
  for (const RankPlace& place : placed->at(service)) {
    absl::StrAppend(&text, text.empty() ? "" : " ", place.node, ":", place.gpu);
  }
  return text;
}

// What a configuration is refused for.
std::string Refusal(int nodes, int gpus, const Strings& more) {
  const auto config = OnCluster(nodes, gpus, more);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << config.status();
  return std::string(config.status().message());
}

TEST(PlaceRanks, GivesEachServiceGpusOfItsOwn) {
  const auto config = OnCluster(2, 8,
                                {"services.rollout.num_gpus_per_node=4", "services.policy_trainer.num_nodes=2",
                                 "services.policy_trainer.num_gpus_per_node=4",
                                 "services.critic_trainer.num_gpus_per_node=2", "services.scorer.num_gpus_per_node=2"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->services().policy_trainer().ranks(), 8);
  EXPECT_EQ(Places(*config, "rollout"), "0:0 0:1 0:2 0:3");
  EXPECT_EQ(Places(*config, "policy_trainer"), "0:4 0:5 0:6 0:7 1:0 1:1 1:2 1:3");
  EXPECT_EQ(Places(*config, "critic_trainer"), "1:4 1:5");
  EXPECT_EQ(Places(*config, "scorer"), "1:6 1:7");
}

TEST(PlaceRanks, PutsWhatNeedsMostOfANodeFirst) {
  // In the order of their names the small ones would have left no node whole.
  const auto config = OnCluster(2, 8,
                                {"services.rollout.num_gpus_per_node=4", "services.policy_trainer.num_gpus_per_node=8",
                                 "services.critic_trainer.num_gpus_per_node=3", "services.scorer.num_gpus_per_node=1"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(Places(*config, "policy_trainer"), "0:0 0:1 0:2 0:3 0:4 0:5 0:6 0:7");
  EXPECT_EQ(Places(*config, "rollout"), "1:0 1:1 1:2 1:3");
  EXPECT_EQ(Places(*config, "critic_trainer"), "1:4 1:5 1:6");
  EXPECT_EQ(Places(*config, "scorer"), "1:7");
}

TEST(PlaceRanks, LetsServicesShareGpus) {
  const auto config = OnCluster(1, 4,
                                {"services.rollout.num_gpus_per_node=4", "services.rollout.gpu_share=0.5",
                                 "services.policy_trainer.num_gpus_per_node=4", "services.policy_trainer.gpu_share=0.3",
                                 "services.critic_trainer.num_gpus_per_node=2", "services.critic_trainer.gpu_share=0.2",
                                 "services.scorer.num_gpus_per_node=2", "services.scorer.gpu_share=0.2"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(Places(*config, "rollout"), "0:0 0:1 0:2 0:3");
  EXPECT_EQ(Places(*config, "policy_trainer"), "0:0 0:1 0:2 0:3");
  EXPECT_EQ(Places(*config, "critic_trainer"), "0:0 0:1");
  EXPECT_EQ(Places(*config, "scorer"), "0:2 0:3") << "the others are full";
}

TEST(PlaceRanks, LeavesAloneWhatIsPlacedByHand) {
  const auto config =
      OnCluster(1, 8,
                {"placement.0.service=rollout", "placement.0.gpus=2,3", "placement.1.service=scorer",
                 "placement.1.gpus=0", "services.scorer.gpu_share=0.5", "services.policy_trainer.num_gpus_per_node=4",
                 "services.critic_trainer.num_gpus_per_node=1", "services.critic_trainer.gpu_share=0.5"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(Places(*config, "rollout"), "0:2 0:3");
  EXPECT_EQ(Places(*config, "policy_trainer"), "0:1 0:4 0:5 0:6");
  EXPECT_EQ(Places(*config, "critic_trainer"), "0:0") << "beside the scorer";
}

TEST(PlaceRanks, IsAsBeforeWhereNothingIsAskedFor) {
  const auto config = OnCluster(2, 4, {"placement.0.service=scorer", "placement.0.nodes=1", "placement.0.gpus=0,3"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(Places(*config, "rollout"), "0:0 0:1 0:2 0:3 1:0 1:1 1:2 1:3");
  EXPECT_EQ(Places(*config, "scorer"), "1:0 1:3");
}

TEST(PlaceRanks, SpreadsRanksOnCpusOverTheirNodes) {
  const auto config =
      LoadRunConfig("",
                    {"cluster.num_nodes=3", "services.policy_trainer.ranks=3", "services.critic_trainer.num_nodes=2",
                     "services.critic_trainer.ranks=4", "services.rollout.num_nodes=1", "services.scorer.num_nodes=1"},
                    "");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(Places(*config, "policy_trainer"), "0:-1 1:-1 2:-1");
  EXPECT_EQ(Places(*config, "rollout"), "0:-1");
  EXPECT_EQ(Places(*config, "critic_trainer"), "1:-1 1:-1 2:-1 2:-1") << "node 0 has the rollout";
  EXPECT_EQ(Places(*config, "scorer"), "0:-1");
}

TEST(PlaceRanks, SaysWhatIsMissing) {
  EXPECT_THAT(Refusal(2, 8,
                      {"services.rollout.num_gpus_per_node=4", "services.policy_trainer.num_gpus_per_node=8",
                       "services.critic_trainer.num_gpus_per_node=8", "services.scorer.num_gpus_per_node=1"}),
              AllOf(HasSubstr("services.rollout.num_gpus_per_node"), HasSubstr("1 node (num_nodes)"),
                    HasSubstr("node 0: 0, node 1: 0"), HasSubstr("gpu_share")));
  EXPECT_THAT(Refusal(2, 8, {"services.rollout.num_gpus_per_node=4"}),
              AllOf(HasSubstr("services.policy_trainer.num_gpus_per_node"), HasSubstr("services.rollout says it")));
  EXPECT_THAT(Refusal(2, 4, {"services.rollout.num_nodes=3", "services.rollout.num_gpus_per_node=1"}),
              AllOf(HasSubstr("services.rollout.num_nodes"), HasSubstr("3"), HasSubstr("cluster.num_nodes is 2")));
  EXPECT_THAT(Refusal(2, 4, {"services.rollout.num_gpus_per_node=2", "services.rollout.ranks=3"}),
              AllOf(HasSubstr("services.rollout.ranks"), HasSubstr("it has 2 GPUs")));
  EXPECT_THAT(Refusal(2, 4, {"services.rollout.num_nodes=2"}), HasSubstr("services.rollout.num_nodes has no effect"));
  EXPECT_THAT(Refusal(2, 4, {"services.rollout.num_gpus_per_node=2", "placement.0.service=rollout"}),
              HasSubstr("an entry of placement"));
  EXPECT_THAT(Refusal(2, 4, {"cluster.node_names=a"}), HasSubstr("cluster.node_names"));
  EXPECT_THAT(Refusal(2, 4, {"cluster.node_names=a,a"}), HasSubstr("cluster.node_names"));
  EXPECT_THAT(Refusal(2, 4, {"cluster.num_numa_nodes=2"}),
              AllOf(HasSubstr("cluster.num_numa_nodes has no effect"), HasSubstr("cluster.num_cpus_per_node")));
  const auto refused = [](const Strings& overrides) {
    return std::string(LoadRunConfig("", overrides, "").status().message());
  };
  EXPECT_THAT(refused({"services.rollout.num_gpus_per_node=2"}),
              AllOf(HasSubstr("services.rollout.num_gpus_per_node has no effect"), HasSubstr("cpu")));
  EXPECT_THAT(refused({"services.rollout.device=cuda", "services.rollout.num_gpus_per_node=2"}), HasSubstr("cluster"));
  EXPECT_THAT(refused({"cluster.num_nodes=2", "services.rollout.num_nodes=2", "services.rollout.ranks=3"}),
              HasSubstr("services.rollout.ranks"));
}

TEST(RolloutHasGpusAlone, AndThenTakesMostOfThem) {
  const auto cache_of = [](const absl::StatusOr<RunConfig>& config) {
    EXPECT_TRUE(config.ok()) << config.status();
    if (!config.ok()) return std::string();
    const RolloutConfig& r = config->rollout();
    return r.has_gpu_memory_utilization() ? absl::StrCat(r.gpu_memory_utilization(), r.has_kv_cache_bytes() ? "!" : "")
                                          : absl::StrCat(r.kv_cache_bytes());
  };
  const auto with = [&](const Strings& more) {
    Strings all = {"actor.pretrain=/model", "critic.pretrain=/model"};
    all.insert(all.end(), more.begin(), more.end());
    return cache_of(OnCluster(1, 8, all));
  };
  const Strings apart = {"services.rollout.num_gpus_per_node=2", "services.policy_trainer.num_gpus_per_node=2",
                         "services.critic_trainer.num_gpus_per_node=2", "services.scorer.num_gpus_per_node=2"};
  const auto apart_and = [&](const Strings& more) {
    Strings all = apart;
    all.insert(all.end(), more.begin(), more.end());
    return with(all);
  };
  EXPECT_EQ(apart_and({}), "0.9");
  EXPECT_EQ(apart_and({"rollout.kv_cache_bytes=5000000"}), "5000000");
  EXPECT_EQ(apart_and({"rollout.gpu_memory_utilization=0.3"}), "0.3");
  EXPECT_EQ(with({}), "1073741824") << "all share";
  EXPECT_EQ(with({"services.policy_trainer.device=cpu", "services.critic_trainer.device=cpu"}), "1073741824")
      << "the reference is there";
  EXPECT_EQ(
      with({"services.policy_trainer.device=cpu", "services.critic_trainer.device=cpu", "services.scorer.device=cpu"}),
      "0.9");
  const auto evaluated = [&](const Strings& more) {
    Strings all = {"services.device=cuda", "rollout.pretrain=/model"};
    all.insert(all.end(), more.begin(), more.end());
    return cache_of(LoadRunConfig("", all, "", Program::kEvaluate));
  };
  EXPECT_EQ(evaluated({}), "0.9");
  EXPECT_EQ(evaluated({"reward.source.0.model=/judge"}), "1073741824");
  EXPECT_EQ(cache_of(LoadRunConfig("", {"actor.pretrain=/model"}, "")), "1073741824") << "on CPUs";
}

// Which GPUs are whose is asked before anything has been checked.
TEST(RolloutHasGpusAlone, AsksNothingOfPlacementsThatAreRefused) {
  EXPECT_THAT(Refusal(2, 8,
                      {"placement.0.service=scorer", "placement.0.nodes=2", "services.rollout.num_gpus_per_node=4",
                       "services.policy_trainer.num_gpus_per_node=2", "services.critic_trainer.num_gpus_per_node=2"}),
              HasSubstr("placement[0].nodes"));
  EXPECT_THAT(Refusal(2, 8, {"placement.0.service=scorer", "placement.0.nodes=1", "services.scorer.ranks=20"}),
              HasSubstr("ranks"));
  EXPECT_THAT(Refusal(2, 8, {"placement.0.service=scorer", "placement.0.gpus=9"}), HasSubstr("placement[0].gpus"));
  EXPECT_THAT(Refusal(1, 8, {"services.scorer.ranks=2000000000"}), HasSubstr("services.scorer.ranks"));
  EXPECT_THAT(Refusal(1, 2000000000, {}), HasSubstr("num_gpus_per_node"));
}

TEST(PlacementWarnings, AreNamedWithTheirRanks) {
  const auto found = [](int nodes, int gpus, const Strings& more) {
    const auto config = OnCluster(nodes, gpus, more);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? PlacementWarnings(*config) : Strings();
  };
  EXPECT_THAT(found(2, 6, {"rollout.tensor_parallel_size=4", "critic.shard_size=6"}),
              ElementsAre(AllOf(HasSubstr("rollout.tensor_parallel_size is 4: ranks 4 to 7 of the rollout"),
                                HasSubstr("nodes 0 to 1"))));
  EXPECT_THAT(found(2, 6, {"actor.shard_size=4"}), ElementsAre(HasSubstr("actor.shard_size is 4: ranks 4 to 7")));
  EXPECT_THAT(found(2, 1, {"rollout.tensor_parallel_size=2", "actor.shard_size=2"}),
              ElementsAre(HasSubstr("rollout.tensor_parallel_size is 2")))
      << "all ranks share a model without shard_size, too";
  EXPECT_THAT(found(2, 8, {"rollout.tensor_parallel_size=4", "actor.shard_size=8"}), testing::IsEmpty());
}

TEST(PlacementWarnings, NameARolloutThatSleepsForNobody) {
  const auto found = [](const Strings& more) {
    Strings all = {"rollout.enable_sleep=true", "services.rollout.num_gpus_per_node=4"};
    for (const char* service : {"policy_trainer", "critic_trainer", "scorer"}) {
      all.push_back(absl::StrCat("services.", service, ".num_gpus_per_node=4"));
      all.push_back(absl::StrCat("services.", service, ".gpu_share=0.3"));
    }
    all.insert(all.end(), more.begin(), more.end());
    const auto config = OnCluster(1, 8, all);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? PlacementWarnings(*config) : Strings();
  };
  EXPECT_THAT(found({}), ElementsAre(HasSubstr("rollout.enable_sleep is true, and no other service has a model on")));
  EXPECT_THAT(found({"services.rollout.gpu_share=0.1"}), testing::IsEmpty()) << "all on the same four";
}

TEST(ForwardsInTurn, WhereTrainersOfSeveralRanksHaveAGpuInCommon) {
  const auto in_turn = [](int nodes, int gpus, const Strings& more) {
    const auto config = OnCluster(nodes, gpus, more);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() && ForwardsInTurn(*config);
  };
  const Strings apart = {"services.rollout.num_gpus_per_node=2", "services.policy_trainer.num_gpus_per_node=2",
                         "services.critic_trainer.num_gpus_per_node=2", "services.scorer.num_gpus_per_node=2"};
  EXPECT_TRUE(in_turn(1, 2, {}));
  EXPECT_FALSE(in_turn(1, 8, apart));
  EXPECT_FALSE(in_turn(1, 1, {})) << "a rank alone waits for no other";
  EXPECT_TRUE(in_turn(1, 1, {"rollout.enable_sleep=true"}));
  Strings asleep = apart;
  asleep.emplace_back("rollout.enable_sleep=true");
  EXPECT_FALSE(in_turn(1, 8, asleep));
  // Without a critic, and with the reference's scorer elsewhere, there is nobody to wait for.
  const Strings elsewhere = {"algorithm.advantage_estimator=rloo", "services.scorer.device=cpu"};
  EXPECT_FALSE(in_turn(1, 2, elsewhere));
}

TEST(TrainersInTurn, WhereTheyThemselvesShareAPlace) {
  const auto in_turn = [](const Strings& more) {
    const auto config = OnCluster(1, 4, more);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() && TrainersInTurn(*config);
  };
  EXPECT_TRUE(in_turn({}));
  // The policy's with the scorer, the critic apart.
  const Strings critic_apart = {"services.policy_trainer.num_gpus_per_node=2", "services.policy_trainer.gpu_share=0.5",
                                "services.scorer.num_gpus_per_node=2",         "services.scorer.gpu_share=0.5",
                                "services.critic_trainer.num_gpus_per_node=2", "services.rollout.device=cpu"};
  EXPECT_FALSE(in_turn(critic_apart));
  EXPECT_TRUE(ForwardsInTurn(*OnCluster(1, 4, critic_apart)));
  EXPECT_FALSE(in_turn({"algorithm.advantage_estimator=rloo"}));
}

TEST(ForwardsInTurn, OnCpusOnlyWhereMemoryIsHeldInTurn) {
  const auto in_turn = [](const Strings& overrides) {
    const auto config = LoadRunConfig("", overrides, "");
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() && ForwardsInTurn(*config);
  };
  EXPECT_FALSE(in_turn({"services.policy_trainer.ranks=2"}));
  EXPECT_TRUE(in_turn({"rollout.enable_sleep=true"}));
  EXPECT_FALSE(in_turn({"rollout.enable_sleep=true", "cluster.num_nodes=4", "services.rollout.num_nodes=1",
                        "services.policy_trainer.num_nodes=1", "services.critic_trainer.num_nodes=1",
                        "services.scorer.num_nodes=1"}))
      << "each has a host of its own";
}

}  // namespace
}  // namespace quartet

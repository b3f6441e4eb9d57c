#include "orchestrator/preflight/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/scratch_folder.h"
#include "core/config/run_config.h"
#include "core/model/initialize.h"
#include "orchestrator/preflight/preflight.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr int64_t kGibi = int64_t{1} << 30;

NodeFacts Healthy(const std::string& host) {
  NodeFacts node;
  node.set_host(host);
  node.set_version("quartet 1");
  node.set_memory_bytes(64 * kGibi);
  node.set_shared_memory_free_bytes(8 * kGibi);
  node.set_open_files(65536);
  node.set_disk_free_bytes(500 * kGibi);
  node.set_sees_run_dir(true);
  node.set_cpu_kernels("fp32");
  return node;
}

class FindingsTest : public testing::Test {
 protected:
  FindingsTest() {
    facts_.own = Healthy("host1");
    for (const char* host : {"host1", "host2", "host3"}) {
      RankCheck* rank = facts_.services["policy_trainer"].add_ranks();
      *rank->mutable_node() = Healthy(host);
    }
  }
  NodeFacts& node(int rank) { return *facts_.services["policy_trainer"].mutable_ranks(rank)->mutable_node(); }
  std::vector<std::string> Found() {
    std::vector<std::string> found;
    for (const Finding& finding : FindProblems(config_, facts_)) {
      found.push_back((finding.fatal ? "error: " : "") + Describe(finding));
    }
    return found;
  }

  RunConfig config_;
  PreflightFacts facts_;
};

TEST_F(FindingsTest, HasNothingToSayOfHealthyHosts) { EXPECT_THAT(Found(), IsEmpty()); }

TEST_F(FindingsTest, NamesTheHostAndWhatToDo) {
  node(1).set_open_files(512);
  node(1).set_shared_memory_free_bytes(64 << 20);
  node(2).set_disk_free_bytes(27 * kGibi);
  facts_.checkpoint_bytes = 28 * kGibi;
  facts_.clock_ahead = {{"host2", 0.9}, {"host3", -7.25}};
  config_.mutable_cluster()->set_host_memory_bytes(65 * kGibi);
  node(0).set_memory_bytes(128 * kGibi);
  node(2).set_memory_bytes(128 * kGibi);
  EXPECT_THAT(Found(), ElementsAre(StartsWith("host2: a process may have 512 files open; raise it"),
                                   StartsWith("host2: /dev/shm has 0.0625 GiB free"),
                                   AllOf(StartsWith("host2: has 64 GiB of memory"), HasSubstr("65 GiB")),
                                   AllOf(StartsWith("host3: where run_dir is, 27 GiB are free"), HasSubstr("28 GiB")),
                                   StartsWith("host3: its clock is 7.2 s behind that of host1")));
}

TEST(CheckpointBytes, AreThoseOfTheModelsThatTheRunTrains) {
  const ScratchFolder scratch;
  ModelConfig model;
  model.model_type = "mistral";
  model.vocab_size = 32;
  model.hidden_size = 8;
  model.intermediate_size = 16;
  model.num_hidden_layers = 1;
  model.num_attention_heads = model.num_key_value_heads = 2;
  model.head_dim = 4;
  model.max_position_embeddings = 64;
  ASSERT_TRUE(WriteRandomModel(model, HeadKind::kVocabulary, 7, Dtype::kF32, scratch.path()).ok());
  // Projections of attention, three of the feed-forward network, three norms, the embedding; and a head.
  constexpr int64_t kBody = 4 * 8 * 8 + 3 * 8 * 16 + 3 * 8 + 32 * 8, kActor = kBody + 32 * 8, kCritic = kBody + 8;
  RunConfig config;
  config.mutable_actor()->set_pretrain(scratch.path());
  config.mutable_actor()->set_dtype("bf16");
  config.mutable_critic()->set_pretrain(scratch.path());
  config.mutable_critic()->set_dtype("fp32");
  EXPECT_EQ(CheckpointBytes(config, {"policy_trainer"}), kActor * 2);
  config.mutable_train()->set_save_optimizer(true);
  EXPECT_EQ(CheckpointBytes(config, {"policy_trainer", "rollout", "scorer"}), kActor * (2 + 12));
  EXPECT_EQ(CheckpointBytes(config, {"policy_trainer", "critic_trainer"}), kActor * (2 + 12) + kCritic * (4 + 12));
  config.mutable_actor()->set_pretrain(scratch.path() + "/none");
  EXPECT_EQ(CheckpointBytes(config, {"policy_trainer"}), 0);
}

TEST_F(FindingsTest, PutsFirstWhatIsInTheWay) {
  node(0).set_open_files(1);
  node(1).set_version("quartet 2");
  node(2).set_sees_run_dir(false);
  node(2).set_cpu_kernels("avx512_bf16");
  EXPECT_THAT(Found(),
              ElementsAre(StartsWith("error: host2: has quartet 2, and host1 has quartet 1"),
                          StartsWith("error: host3: does not see what host1 has written to run_dir"),
                          AllOf(StartsWith("error: hosts: "), HasSubstr("avx512_bf16 on host3; fp32 on host1, host2")),
                          StartsWith("host1: a process may have 1 files open")));
}

TEST_F(FindingsTest, LooksAtGpus) {
  config_.mutable_cluster()->set_gpu_memory_bytes(79 * kGibi);
  for (int rank : {0, 1, 2}) {
    node(rank).set_gpu_memory_bytes(80 * kGibi);
    node(rank).set_gpu_driver("550");
  }
  EXPECT_THAT(Found(), IsEmpty());
  node(0).set_gpu_memory_used_bytes(20 * kGibi);
  node(1).set_gpu_memory_bytes(40 * kGibi);
  node(2).set_gpu_driver("535");
  EXPECT_THAT(Found(),
              ElementsAre(AllOf(StartsWith("host1, rank 0 of the policy_trainer: "), HasSubstr("20 GiB are in use")),
                          AllOf(StartsWith("host2, "), HasSubstr("40 GiB"), HasSubstr("79 GiB")),
                          HasSubstr("drivers differ: 535 on host3; 550 on host1, host2")));
}

TEST_F(FindingsTest, SeesCollectivesOnAnotherInterfaceThanTheRank) {
  for (int rank : {0, 1, 2}) {
    node(rank).set_interface("eth0");
    node(rank).set_nccl_socket_ifname("=eth0");
  }
  EXPECT_THAT(Found(), IsEmpty());
  node(1).set_nccl_socket_ifname("ib");
  facts_.services["policy_trainer"].mutable_ranks(1)->set_endpoint("10.0.0.2:50052");
  EXPECT_THAT(Found(), ElementsAre(AllOf(StartsWith("host2, rank 0 of the policy_trainer: "), HasSubstr("not on eth0"),
                                         HasSubstr("10.0.0.2:50052"), HasSubstr("NCCL_SOCKET_IFNAME is \"ib\""))));
}

TEST_F(FindingsTest, LeavesTheContextsOfServicesThatShareAGpuAlone) {
  const int64_t four_contexts = int64_t{2100} << 20;
  node(0).set_gpu_memory_bytes(80 * kGibi);
  node(0).set_gpu_memory_used_bytes(four_contexts);
  EXPECT_THAT(Found(), ElementsAre(HasSubstr("2.05 GiB are in use")));
  config_.mutable_services()->set_device("cuda");
  for (const std::string& service : kServiceNames) {
    MutablePlacementOf(&config_, service)->set_ranks(1);
    MutablePlacementOf(&config_, service)->set_device("cuda");
  }
  EXPECT_THAT(Found(), IsEmpty());
  node(0).set_gpu_memory_used_bytes(four_contexts + 2 * kGibi);
  EXPECT_THAT(Found(), ElementsAre(HasSubstr("4.05 GiB are in use")));
}

TEST_F(FindingsTest, ComparesWhatIsWithinAHostWithWhatIsStated) {
  MeasureReply& rollout = facts_.services["rollout"];
  for (int rank = 0; rank < 2; ++rank) *rollout.add_ranks()->mutable_node() = Healthy("host2");
  rollout.set_all_gather_bytes_per_second(10 / 8e-9);
  EXPECT_THAT(Found(), IsEmpty()) << "nothing is stated";
  config_.mutable_cluster()->set_intra_node_gbps(100);
  EXPECT_THAT(Found(), ElementsAre(AllOf(StartsWith("host2: the collectives of the rollout within it carry 10 Gb/s"),
                                         HasSubstr("says 100 Gb/s"))));
  rollout.mutable_ranks(1)->mutable_node()->set_host("host3");
  EXPECT_THAT(Found(), IsEmpty()) << "it goes over links between hosts";
}

TEST_F(FindingsTest, NamesTheHostWhoseLinkIsSlow) {
  const auto link = [&](const std::string& from, const std::string& to, double gigabits) {
    facts_.links.push_back(
        {.kind = "collectives", .from_host = from, .to_host = to, .bytes_per_second = gigabits / 8e-9});
  };
  link("host1", "host1", 100);
  link("host1", "host2", 10);
  link("host2", "host3", 4);
  EXPECT_THAT(Found(), IsEmpty());
  link("host3", "host4", 1);
  link("host4", "host1", 1.1);
  EXPECT_THAT(Found(),
              ElementsAre(AllOf(StartsWith("host4: its link is slow. "), HasSubstr("from host3 to host4: 1 Gb/s"),
                                HasSubstr("the best: 10 Gb/s"), HasSubstr("NCCL_SOCKET_IFNAME"))));
  // What is stated counts, too, where there is nothing to compare with.
  facts_.links.clear();
  link("host1", "host2", 10);
  config_.mutable_cluster()->set_inter_node_gbps(25);
  EXPECT_THAT(Found(), ElementsAre(AllOf(StartsWith("links between hosts: slow. "), HasSubstr("says 25 Gb/s"))));
}

}  // namespace
}  // namespace quartet

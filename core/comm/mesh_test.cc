#include "core/comm/mesh.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/comm/agreement.h"
#include "core/comm/testing/rank_threads.h"

namespace quartet {
namespace {

struct Grid {
  int replicas, shards;
};

class MeshOfShape : public testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(Shapes, MeshOfShape,
                         testing::Values(Grid{1, 1}, Grid{1, 3}, Grid{3, 1}, Grid{2, 2}, Grid{3, 2}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.replicas) + "x" + std::to_string(shape.param.shards);
                         });

TEST_P(MeshOfShape, GroupsHoldTheRanksOfARowAndOfAColumn) {
  const auto [replicas, shards] = GetParam();
  RunRanksOfStore(replicas * shards,
                  [&, replicas = replicas, shards = shards](KeyValueStore* store, const ProcessGroupOptions& options) {
                    auto mesh = MakeMesh(store, options, shards);
                    ASSERT_TRUE(mesh.ok()) << mesh.status();
                    ProcessGroup &world = (*mesh)->world(), &shard = (*mesh)->shard(), &replica = (*mesh)->replica();
                    EXPECT_EQ(world.size(), replicas * shards);
                    EXPECT_EQ(shard.size(), shards);
                    EXPECT_EQ(replica.size(), replicas);
                    EXPECT_EQ(replica.rank() * shards + shard.rank(), world.rank());
                    EXPECT_EQ(&shard == &world, replicas == 1);
                    EXPECT_EQ(&replica == &world, shards == 1);

                    auto ranks_of = [&](ProcessGroup& group) {
                      at::Tensor ranks = at::full({group.size()}, -1.0);
                      ranks[group.rank()] = world.rank();
                      group.AllGatherInPlace(ranks)->Wait();
                      return ranks;
                    };
                    EXPECT_TRUE(at::equal(ranks_of(world), at::arange(world.size(), at::kFloat)));
                    EXPECT_TRUE(at::equal(ranks_of(shard), at::arange(shards, at::kFloat) + replica.rank() * shards));
                    EXPECT_TRUE(at::equal(ranks_of(replica), at::arange(replicas, at::kFloat) * shards + shard.rank()));
                  });
}

TEST_P(MeshOfShape, ScatteringWithinReplicasThenAddingOverThemGivesTheSumOverAllRanks) {
  const auto [replicas, shards] = GetParam();
  RunRanksOfStore(replicas * shards, [&, shards = shards](KeyValueStore* store, const ProcessGroupOptions& options) {
    auto mesh = MakeMesh(store, options, shards);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    const int64_t part = 1000;
    const at::Tensor input = at::arange(part * shards, at::kDouble) * (options.rank + 1);
    at::Tensor output = at::empty({part}, at::kDouble);
    (*mesh)->shard().ReduceScatterSum(output, input)->Wait();
    (*mesh)->replica().AllReduceSum(output)->Wait();
    const int64_t first = (*mesh)->shard().rank() * part;
    const int n = options.size;
    EXPECT_TRUE(at::equal(output, at::arange(first, first + part, at::kDouble) * (n * (n + 1) / 2)));
  });
}

TEST(Mesh, RefusesAShardSizeThatDoesNotDivideTheRanks) {
  ProcessGroupOptions options;
  options.size = 6;
  options.device = "meta";
  for (const int shard_size : {0, 4, 12}) {
    EXPECT_EQ(MakeMesh(nullptr, options, shard_size).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(DryMesh, HasTheRanksOfARealOneWithoutPeers) {
  ProcessGroupOptions options;
  options.rank = 4097;
  options.size = 8192;
  options.device = "meta";
  auto mesh = MakeMesh(nullptr, options, 8);
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  EXPECT_EQ((*mesh)->world().rank(), 4097);
  EXPECT_EQ((*mesh)->shard().size(), 8);
  EXPECT_EQ((*mesh)->shard().rank(), 1);
  EXPECT_EQ((*mesh)->replica().size(), 1024);
  EXPECT_EQ((*mesh)->replica().rank(), 512);
  (*mesh)->world().Barrier();
}

// One of each collective, so that groups can be compared.
void UseAllCollectives(ProcessGroup& group, at::Device device) {
  const auto floats = at::TensorOptions(at::kFloat).device(device);
  const int64_t n = group.size();
  at::Tensor gathered = at::zeros({n * 1000}, floats), reduced = at::zeros({500}, floats);
  group.AllGatherInPlace(gathered)->Wait();
  group.AllGatherInPlace(gathered)->Wait();
  group.ReduceScatterSum(reduced, at::zeros({n * 500}, floats))->Wait();
  group.AllReduceSum(reduced)->Wait();
  group.AllReduceMax(reduced)->Wait();
  group.Barrier();
}

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllReduce, CollectiveKind::kBarrier};

TEST(DryGroup, CountsWhatARealGroupCounts) {
  for (const int size : {1, 2, 3}) {
    RunRanks(size, [&](ProcessGroup& real) {
      ProcessGroupOptions options;
      options.rank = real.rank();
      options.size = size;
      options.device = "meta";
      auto dry = MakeProcessGroup(nullptr, options);
      ASSERT_TRUE(dry.ok()) << dry.status();
      UseAllCollectives(real, at::kCPU);
      UseAllCollectives(**dry, at::kMeta);
      for (const CollectiveKind kind : kKinds) {
        EXPECT_EQ((*dry)->volume(kind).calls, real.volume(kind).calls) << CollectiveName(kind);
        EXPECT_EQ((*dry)->volume(kind).sent_bytes, real.volume(kind).sent_bytes) << CollectiveName(kind);
        EXPECT_EQ((*dry)->volume(kind).received_bytes, real.volume(kind).received_bytes) << CollectiveName(kind);
      }
    });
  }
}

TEST(DryGroup, CountsThePartsThatOthersHave) {
  ProcessGroupOptions options;
  options.size = 4;
  options.device = "meta";
  auto group = MakeProcessGroup(nullptr, options);
  ASSERT_TRUE(group.ok()) << group.status();
  UseAllCollectives(**group, at::kMeta);
  EXPECT_EQ((*group)->volume(CollectiveKind::kAllGather).calls, 2);
  EXPECT_EQ((*group)->volume(CollectiveKind::kAllGather).sent_bytes, 2 * 3 * 4000);
  EXPECT_EQ((*group)->volume(CollectiveKind::kReduceScatter).received_bytes, 3 * 2000);
  EXPECT_EQ((*group)->volume(CollectiveKind::kAllReduce).sent_bytes, 2 * 2 * 2000 * 3 / 4);
  EXPECT_EQ((*group)->volume(CollectiveKind::kBarrier).calls, 1);
  EXPECT_EQ((*group)->volume(CollectiveKind::kBarrier).sent_bytes, 0);
}

TEST(DryGroup, AgreesWithItself) {
  ProcessGroupOptions options;
  options.size = 1000;
  options.device = "meta";
  auto group = MakeProcessGroup(nullptr, options);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_TRUE(AgreeOnStatus(**group, absl::OkStatus(), at::kMeta).ok());
  EXPECT_EQ(AgreeOnStatus(**group, absl::NotFoundError("no file 'x'"), at::kMeta), absl::NotFoundError("no file 'x'"));
}

}  // namespace
}  // namespace quartet

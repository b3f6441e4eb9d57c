#include "core/zero/sharded/flat_layout.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

ParameterGroup Group(std::vector<std::vector<int64_t>> shapes) {
  ParameterGroup group;
  for (auto& shape : shapes) group.parameters.push_back({"p", shape, true});
  return group;
}

TEST(FlatLayout, AlignsEveryTensorTo256BytesOfTheComputeType) {
  const ParameterGroup group = Group({{3}, {10, 10}, {1}});
  const FlatGroup bf16 = MakeFlatGroup(group, 2, 1);
  EXPECT_EQ(bf16.offsets, (std::vector<int64_t>{0, 128, 256}));
  EXPECT_EQ(bf16.total, 384);
  const FlatGroup fp32 = MakeFlatGroup(group, 4, 1);
  EXPECT_EQ(fp32.offsets, (std::vector<int64_t>{0, 64, 192}));
  EXPECT_EQ(fp32.total, 256);
}

TEST(FlatLayout, EveryElementBelongsToExactlyOneRankAtEveryWorldSize) {
  const ParameterGroup group = Group({{7}, {33, 31}, {1}, {500}, {2, 3, 5}});
  for (int ranks = 1; ranks <= 300; ++ranks) {
    const FlatGroup flat = MakeFlatGroup(group, 2, ranks);
    ASSERT_EQ(flat.shard * ranks, flat.total);
    ASSERT_EQ(flat.shard % 128, 0);
    std::vector<std::vector<int>> owners;
    for (const auto& parameter : group.parameters) owners.emplace_back(parameter.numel(), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      for (const FlatPiece& piece : PiecesWithin(group, flat, rank * flat.shard, flat.shard)) {
        ASSERT_LE(piece.offset + piece.count, flat.shard);
        ASSERT_EQ(rank * flat.shard + piece.offset, flat.offsets[piece.parameter] + piece.begin);
        for (int64_t i = 0; i < piece.count; ++i) ++owners[piece.parameter][piece.begin + i];
      }
    }
    for (const auto& parameter : owners) {
      for (int count : parameter) ASSERT_EQ(count, 1) << ranks << " ranks";
    }
  }
}

TEST(FlatLayout, ReplicasOwnEqualSharesOfAShard) {
  const ParameterGroup group = Group({{7}, {33, 31}, {500}});
  for (int shards = 1; shards <= 5; ++shards) {
    for (int replicas = 1; replicas <= 5; ++replicas) {
      const FlatGroup flat = MakeFlatGroup(group, 2, shards, replicas);
      EXPECT_EQ(flat.shard * shards, flat.total);
      EXPECT_EQ(flat.shard % (128 * replicas), 0);
      EXPECT_EQ(flat.offsets, MakeFlatGroup(group, 2, 1).offsets);
    }
  }
}

}  // namespace
}  // namespace quartet

#include "rollout/weight_receiver.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rollout/testing/fake_publisher.h"

namespace quartet {
namespace {

using Fault = FakePublisher::Fault;

const std::vector<ParameterSpec>& Tensors() {
  static const auto& tensors = *new std::vector<ParameterSpec>{
      {.name = "model.embed_tokens.weight", .shape = {97, 33}},
      {.name = "model.layers.0.input_layernorm.weight", .shape = {33}},
      {.name = "model.layers.0.mlp.up_proj.weight", .shape = {70, 33}},
  };
  return tensors;
}

// Every bit pattern of bf16 that is a finite number comes up.
std::vector<std::vector<char>> Values(Dtype dtype) {
  std::mt19937 random(4);
  std::vector<std::vector<char>> all;
  for (const ParameterSpec& tensor : Tensors()) {
    std::vector<char> values(tensor.numel() * DtypeSize(dtype));
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const float x = std::normal_distribution<float>()(random);
      uint32_t bits;
      std::memcpy(&bits, &x, 4);
      if (dtype == Dtype::kF32) {
        std::memcpy(&values[i * 4], &bits, 4);
      } else {
        const auto half = static_cast<uint16_t>(bits >> 16);
        std::memcpy(&values[i * 2], &half, 2);
      }
    }
    all.push_back(std::move(values));
  }
  return all;
}

const std::vector<int> kWhole(3, 1);

// One rank's memory for elements [numel * rank / ranks, numel * (rank + 1) / ranks) of each tensor.
struct Memory {
  Memory(Dtype dtype, int rank, int ranks) {
    for (size_t i = 0; i < Tensors().size(); ++i) {
      const int64_t numel = Tensors()[i].numel();
      const int64_t begin = numel * rank / ranks;
      const int64_t count = numel * (rank + 1) / ranks - begin;
      buffers.emplace_back(count * DtypeSize(dtype));
      ranges.push_back({static_cast<int32_t>(i), {.begin = begin, .count = count}, buffers.back().data()});
    }
  }
  std::vector<std::vector<char>> buffers;
  std::vector<StagedRange> ranges;
};

absl::StatusOr<PulledWeights> Pull(const WeightManifest& manifest, Memory* memory, Dtype resident,
                                   int connections = 1) {
  return PullWeights(manifest, Tensors(), memory->ranges, resident, grpc::InsecureChannelCredentials(),
                     Deadline::In(absl::Seconds(20)), connections);
}

TEST(WeightReceiver, PutsEveryElementInItsPlaceAndItsHashesAddUpOverRanks) {
  const std::vector<std::vector<char>> values = Values(Dtype::kBF16);
  for (const int sources : {1, 2, 5}) {
    FakePublisher publisher(7, Dtype::kBF16, Tensors(), values, sources);
    ASSERT_TRUE(CheckManifest(publisher.manifest(), Tensors(), 6).ok());
    for (const int ranks : {1, 3}) {
      std::vector<uint64_t> sums(Tensors().size());
      int64_t bytes = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        Memory memory(Dtype::kBF16, rank, ranks);
        const auto pulled = Pull(publisher.manifest(), &memory, Dtype::kBF16);
        ASSERT_TRUE(pulled.ok()) << pulled.status();
        bytes += pulled->bytes;
        for (size_t i = 0; i < sums.size(); ++i) {
          sums[i] += pulled->hashes[i];
          const char* expected = values[i].data() + memory.ranges[i].elements.begin * 2;
          EXPECT_EQ(std::memcmp(memory.buffers[i].data(), expected, memory.buffers[i].size()), 0)
              << "tensor " << i << " on rank " << rank;
        }
      }
      EXPECT_TRUE(CheckHashes(publisher.manifest(), {sums}, 1, kWhole).ok());
      EXPECT_EQ(bytes, (97 * 33 + 33 + 70 * 33) * 2);
    }
  }
}

TEST(WeightReceiver, DividesWhatFewSourcesHaveAmongConnections) {
  const std::vector<std::vector<char>> values = Values(Dtype::kF32);
  for (const int sources : {1, 2}) {
    for (const int connections : {2, 3, 8, 64}) {
      FakePublisher publisher(7, Dtype::kF32, Tensors(), values, sources);
      Memory memory(Dtype::kF32, 0, 1);
      const auto pulled = Pull(publisher.manifest(), &memory, Dtype::kF32, connections);
      ASSERT_TRUE(pulled.ok()) << pulled.status();
      EXPECT_EQ(publisher.pulls(), connections / sources * sources);
      EXPECT_EQ(pulled->bytes, (97 * 33 + 33 + 70 * 33) * 4);
      EXPECT_TRUE(CheckHashes(publisher.manifest(), {pulled->hashes}, 1, kWhole).ok());
      for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(memory.buffers[i], values[i]) << "tensor " << i;
    }
  }
}

// A rank of many of a small model.
TEST(WeightReceiver, PullsNothingWhereARankHasNoElement) {
  FakePublisher publisher(7, Dtype::kF32, Tensors(), Values(Dtype::kF32), 2);
  const auto pulled = PullWeights(publisher.manifest(), Tensors(), /*ranges=*/{}, Dtype::kF32,
                                  grpc::InsecureChannelCredentials(), Deadline::In(absl::Seconds(20)), 8);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->bytes, 0);
  EXPECT_EQ(publisher.pulls(), 0);
}

// The rows of the first tensor and the columns of the last divided over `ranks`, the norm whole.
std::vector<ParameterSpec> SharesOf(int rank, int ranks) {
  std::vector<ParameterSpec> shares = Tensors();
  const auto slice = [&](ParameterSpec& tensor, int dimension) {
    const int64_t whole = tensor.shape[dimension], begin = whole * rank / ranks;
    tensor.slice = TensorSlice{tensor.shape, dimension, begin};
    tensor.shape[dimension] = whole * (rank + 1) / ranks - begin;
  };
  slice(shares[0], 0);
  slice(shares[2], 1);
  return shares;
}

TEST(WeightReceiver, CountsOnceWhatSeveralRanksHave) {
  WeightManifest manifest;
  manifest.set_version(7);
  manifest.add_tensors()->set_name("k_proj");
  manifest.mutable_tensors(0)->set_hash(30);
  const auto message = [&](const std::vector<std::vector<uint64_t>>& ranks) {
    return std::string(CheckHashes(manifest, ranks, 4, {2}).message());
  };
  EXPECT_EQ(message({{10}, {10}, {20}, {20}}), "");
  EXPECT_THAT(message({{10}, {10}, {20}, {21}}),
              testing::AllOf(testing::StartsWith("rank 3: weight version 7: tensor k_proj arrived with hash "),
                             testing::HasSubstr("the same part on rank 2 with")));
  EXPECT_THAT(message({{11}, {11}, {20}, {20}}), testing::HasSubstr("was published with"));
  EXPECT_THAT(message({{10}, {10}, {20}, {20}, {10}, {10}, {21}, {21}}), testing::StartsWith("ranks 4 to 7: "));
}

TEST(WeightReceiver, PullsSlicesOfRowsAndColumnsWhereverTheirSourcesCutThem) {
  for (const Dtype wire : {Dtype::kBF16, Dtype::kF32}) {
    const std::vector<std::vector<char>> values = Values(wire);
    const int64_t size = DtypeSize(wire);
    for (const int sources : {1, 2, 5}) {
      for (const int64_t chunk : {1000, 7}) {
        FakePublisher publisher(7, wire, Tensors(), values, sources, chunk);
        std::vector<std::vector<uint64_t>> hashes;
        for (int rank = 0; rank < 3; ++rank) {
          const std::vector<ParameterSpec> shares = SharesOf(rank, 3);
          ASSERT_TRUE(CheckManifest(publisher.manifest(), shares, 6).ok());
          std::vector<std::vector<char>> buffers;
          std::vector<StagedRange> ranges;
          for (size_t i = 0; i < shares.size(); ++i) {
            buffers.emplace_back(shares[i].numel() * size);
            ranges.push_back({static_cast<int32_t>(i), shares[i].stored_range(), buffers.back().data()});
          }
          const auto pulled = PullWeights(publisher.manifest(), shares, ranges, wire,
                                          grpc::InsecureChannelCredentials(), Deadline::In(absl::Seconds(20)),
                                          /*connections=*/rank == 1 ? 1 : 7);
          ASSERT_TRUE(pulled.ok()) << pulled.status();
          hashes.push_back(pulled->hashes);
          for (size_t i = 0; i < shares.size(); ++i) {
            const StridedRange elements = shares[i].stored_range();
            for (int64_t row = 0; row < elements.rows; ++row) {
              ASSERT_EQ(std::memcmp(buffers[i].data() + row * elements.count * size,
                                    values[i].data() + (elements.begin + row * elements.stride) * size,
                                    elements.count * size),
                        0)
                  << "row " << row << " of tensor " << i << " on rank " << rank;
            }
          }
        }
        EXPECT_TRUE(CheckHashes(publisher.manifest(), hashes, 3, {1, 3, 1}).ok());
        hashes[2][1] ^= 1;
        const absl::Status norm = CheckHashes(publisher.manifest(), hashes, 3, {1, 3, 1});
        EXPECT_EQ(norm.code(), absl::StatusCode::kDataLoss);
        EXPECT_TRUE(
            absl::StartsWith(norm.message(), "rank 2: weight version 7: tensor model.layers.0.input_layernorm.weight"))
            << norm;
        hashes[2][1] ^= 1;
        hashes[1][2] += 1;
        const absl::Status columns = CheckHashes(publisher.manifest(), hashes, 3, {1, 3, 1});
        EXPECT_EQ(columns.code(), absl::StatusCode::kDataLoss);
        EXPECT_TRUE(absl::StartsWith(columns.message(), "weight version 7: tensor model.layers.0.mlp.up_proj.weight"))
            << columns;
        hashes[1][2] -= 1;
        // Two engines that have the model each.
        hashes.resize(6);
        std::copy_n(hashes.begin(), 3, hashes.begin() + 3);
        EXPECT_TRUE(CheckHashes(publisher.manifest(), hashes, 3, {1, 3, 1}).ok());
        hashes[2][2] -= 1;
        hashes[3][2] += 1;  // what all ranks have is the same
        const absl::Status first = CheckHashes(publisher.manifest(), hashes, 3, {1, 3, 1});
        EXPECT_TRUE(absl::StartsWith(first.message(), "ranks 0 to 2: weight version 7: tensor model.layers.0.mlp.up"))
            << first;
      }
    }
  }
}

TEST(WeightReceiver, ConvertsToTheResidentTypeAfterHashing) {
  {
    const auto values = Values(Dtype::kBF16);
    FakePublisher publisher(1, Dtype::kBF16, Tensors(), values, 2);
    Memory memory(Dtype::kF32, 0, 1);
    const auto pulled = Pull(publisher.manifest(), &memory, Dtype::kF32);
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_TRUE(CheckHashes(publisher.manifest(), {pulled->hashes}, 1, kWhole).ok());
    for (int64_t i = 0; i < Tensors()[0].numel(); ++i) {
      uint16_t half;
      uint32_t whole;
      std::memcpy(&half, &values[0][i * 2], 2);
      std::memcpy(&whole, &memory.buffers[0][i * 4], 4);
      ASSERT_EQ(whole, uint32_t{half} << 16);
    }
  }
  {
    const auto values = Values(Dtype::kF32);
    FakePublisher publisher(1, Dtype::kF32, Tensors(), values, 2);
    Memory memory(Dtype::kBF16, 0, 1);
    const auto pulled = Pull(publisher.manifest(), &memory, Dtype::kBF16);
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_TRUE(CheckHashes(publisher.manifest(), {pulled->hashes}, 1, kWhole).ok());
    for (int64_t i = 0; i < Tensors()[0].numel(); ++i) {
      float exact;
      uint16_t half;
      std::memcpy(&exact, &values[0][i * 4], 4);
      std::memcpy(&half, &memory.buffers[0][i * 2], 2);
      const uint32_t bits = uint32_t{half} << 16;
      float rounded;
      std::memcpy(&rounded, &bits, 4);
      // bf16 has 8 significant bits.
      ASSERT_LE(std::abs(rounded - exact), std::ldexp(1.0, std::ilogb(exact) - 8));
    }
  }
}

TEST(WeightReceiver, NamesTheTensorThatArrivedChanged) {
  FakePublisher publisher(3, Dtype::kBF16, Tensors(), Values(Dtype::kBF16), 2);
  publisher.set_fault(Fault::kFlipsABit, 2);
  Memory memory(Dtype::kBF16, 0, 1);
  const auto pulled = Pull(publisher.manifest(), &memory, Dtype::kBF16);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  const absl::Status status = CheckHashes(publisher.manifest(), {pulled->hashes}, 1, kWhole);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.ToString().find("model.layers.0.mlp.up_proj.weight"), std::string::npos) << status;
}

TEST(WeightReceiver, NoticesSourcesThatSendSomethingElse) {
  for (const Fault fault : {Fault::kSkipsAChunk, Fault::kEndsEarly, Fault::kSendsAnotherRange}) {
    FakePublisher publisher(3, Dtype::kBF16, Tensors(), Values(Dtype::kBF16), 2);
    publisher.set_fault(fault, 0);
    Memory memory(Dtype::kBF16, 0, 1);
    EXPECT_EQ(Pull(publisher.manifest(), &memory, Dtype::kBF16).status().code(), absl::StatusCode::kDataLoss)
        << static_cast<int>(fault);
  }
}

TEST(WeightReceiver, NamesTheSourceThatIsGone) {
  FakePublisher publisher(3, Dtype::kBF16, Tensors(), Values(Dtype::kBF16), 3);
  Memory memory(Dtype::kBF16, 0, 1);
  publisher.set_fault(Fault::kBreaks, 1);
  absl::Status status = Pull(publisher.manifest(), &memory, Dtype::kBF16).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  publisher.set_fault(Fault::kNone, 1);
  publisher.Stop(2);
  status = Pull(publisher.manifest(), &memory, Dtype::kBF16).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.ToString().find(publisher.manifest().sources(2).endpoint()), std::string::npos) << status;
}

class ManifestTest : public testing::Test {
 protected:
  ManifestTest() : publisher_(5, Dtype::kBF16, Tensors(), Values(Dtype::kBF16), 2), manifest_(publisher_.manifest()) {}

  void ExpectRefused(const std::string& reason) {
    const absl::Status status = CheckManifest(manifest_, Tensors(), 4);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(status.ToString().find(reason), std::string::npos) << status;
  }

  FakePublisher publisher_;
  WeightManifest manifest_;
};

TEST_F(ManifestTest, IsAcceptedAsPublished) { EXPECT_TRUE(CheckManifest(manifest_, Tensors(), 4).ok()); }

TEST_F(ManifestTest, MayBeOfTheVersionWhoseWeightsWereReleasedButNotOlder) {
  EXPECT_FALSE(CheckManifest(manifest_, Tensors(), 5).ok());
  EXPECT_TRUE(CheckManifest(manifest_, Tensors(), 5, /*released=*/true).ok());
  const absl::Status older = CheckManifest(manifest_, Tensors(), 6, /*released=*/true);
  EXPECT_EQ(older.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(older.ToString().find("version 5 is older than version 6, whose weights were released"), std::string::npos)
      << older;
  manifest_.set_version(0);
  EXPECT_FALSE(CheckManifest(manifest_, Tensors(), 0, /*released=*/true).ok());
}

TEST_F(ManifestTest, IsRefusedWhereItsVersionIsNotNewer) {
  manifest_.set_version(4);
  ExpectRefused("version 4 is not newer than version 4");
  manifest_.set_version(3);
  ExpectRefused("not newer");
}

TEST_F(ManifestTest, IsRefusedForAnotherElementType) {
  manifest_.set_dtype("F16");
  ExpectRefused("F16");
}

TEST_F(ManifestTest, IsRefusedForAnotherShape) {
  manifest_.mutable_tensors(0)->set_shape(0, 33);
  manifest_.mutable_tensors(0)->set_shape(1, 97);
  ExpectRefused("[33, 97]; this model's is [97, 33]");
}

TEST_F(ManifestTest, IsRefusedForAMissingAnUnknownOrATwiceListedTensor) {
  manifest_.mutable_tensors(1)->set_name("other");
  ExpectRefused("model.layers.0.input_layernorm.weight is missing");
  manifest_ = publisher_.manifest();
  manifest_.add_tensors()->set_name("extra");
  ExpectRefused("extra is not one of this model");
  *manifest_.mutable_tensors(3) = manifest_.tensors(0);
  ExpectRefused("listed twice");
}

TEST_F(ManifestTest, IsRefusedWhereRangesOverlapLeaveGapsOrLieOutside) {
  manifest_.mutable_sources(0)->mutable_ranges(0)->set_count(manifest_.sources(0).ranges(0).count() - 1);
  ExpectRefused("of model.embed_tokens.weight has no source");
  manifest_.mutable_sources(0)->mutable_ranges(0)->set_count(manifest_.sources(0).ranges(0).count() + 2);
  ExpectRefused("of model.embed_tokens.weight has two sources");
  manifest_ = publisher_.manifest();
  manifest_.mutable_sources()->RemoveLast();
  ExpectRefused("has no source");
  manifest_ = publisher_.manifest();
  manifest_.mutable_sources(1)->mutable_ranges(0)->set_count(1 << 30);
  ExpectRefused("which has 3201");
  manifest_.mutable_sources(1)->mutable_ranges(0)->set_tensor(9);
  ExpectRefused("a range of tensor 9; there are 3");
  manifest_ = publisher_.manifest();
  manifest_.mutable_sources(1)->mutable_ranges(0)->set_rows(2);
  ExpectRefused("a range of 2 rows of model.embed_tokens.weight");
}

}  // namespace
}  // namespace quartet

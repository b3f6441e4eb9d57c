#include "policy_trainer/weight_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "core/weights/tensor_hash.h"
#include "core/weights/tensor_range.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

ParameterLayout TwoTensors() {
  ParameterLayout layout;
  layout.groups.push_back({"embedding", {{"a", {2, 3}}}});
  layout.groups.push_back({"head", {{"b", {5}}}});
  return layout;
}

std::shared_ptr<PublishedWeights> Frozen(std::vector<std::vector<int64_t>> tensor_begin_count,
                                         std::shared_ptr<SnapshotMemory> memory = nullptr) {
  Ledger own;
  if (memory == nullptr) memory = std::make_shared<SnapshotMemory>(&own);
  auto weights = std::make_shared<PublishedWeights>(3, Dtype::kF32, memory);
  for (const auto& piece : tensor_begin_count) {
    auto* data = static_cast<float*>(weights->Add(piece[0], piece[1], piece[2]));
    for (int64_t i = 0; i < piece[2]; ++i) data[i] = 100.0f * piece[0] + (piece[1] + i);
  }
  return weights;
}

TensorRange Range(int tensor, int64_t begin, int64_t count) {
  TensorRange range;
  range.set_tensor(tensor);
  range.set_begin(begin);
  range.set_count(count);
  return range;
}

TEST(WeightPublisher, AddsPartialHashesUpToTheHashesOfWholeTensors) {
  const std::vector<PublishedPart> parts = {Frozen({{0, 0, 4}, {1, 3, 2}})->Describe(2),
                                            Frozen({{0, 4, 2}, {1, 0, 3}})->Describe(2)};
  const auto manifest = BuildManifest(3, Dtype::kF32, TwoTensors(), parts, {"h:1", "h:2"});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const float a[] = {0, 1, 2, 3, 4, 5}, b[] = {100, 101, 102, 103, 104};
  EXPECT_EQ(manifest->tensors(0).hash(), HashElements(a, Dtype::kF32, 0, 6));
  EXPECT_EQ(manifest->tensors(1).hash(), HashElements(b, Dtype::kF32, 0, 5));
  EXPECT_EQ(manifest->dtype(), "F32");
  EXPECT_EQ(manifest->sources(1).endpoint(), "h:2");
  EXPECT_EQ(manifest->sources(1).ranges(0).begin(), 4);
}

TEST(WeightPublisher, HashesLargePartsAsTheirElementsAre) {
  constexpr int64_t kCount = (int64_t{5} << 20) + 3;
  const auto weights = Frozen({{0, 7, kCount}, {1, 0, 5}});
  const PublishedPart part = weights->Describe(2);
  const std::string bytes = weights->Read(Range(0, 7, kCount)).value();
  EXPECT_EQ(part.hashes(0), HashElements(bytes.data(), Dtype::kF32, 7, kCount));
}

TEST(WeightPublisher, RefusesAManifestWithAGapAnOverlapOrAMissingEnd) {
  const auto built = [](std::vector<std::vector<int64_t>> first, std::vector<std::vector<int64_t>> second) {
    return BuildManifest(3, Dtype::kF32, TwoTensors(), {Frozen(first)->Describe(2), Frozen(second)->Describe(2)},
                         {"h:1", "h:2"})
        .status();
  };
  EXPECT_TRUE(built({{0, 0, 6}}, {{1, 0, 5}}).ok());
  EXPECT_THAT(std::string(built({{0, 0, 2}, {0, 3, 3}}, {{1, 0, 5}}).message()), HasSubstr("element 2 of a"));
  EXPECT_FALSE(built({{0, 0, 4}, {1, 0, 5}}, {{0, 3, 3}}).ok());
  EXPECT_FALSE(built({{0, 0, 6}, {1, 0, 5}}, {{0, 0, 6}}).ok());
  EXPECT_THAT(std::string(built({{0, 0, 6}}, {{1, 0, 4}}).message()), HasSubstr("element 4 of b"));
}

TEST(WeightPublisher, ReadsOnlyWhatIsThere) {
  const auto weights = Frozen({{0, 2, 4}});
  const auto read = weights->Read(Range(0, 3, 2));
  ASSERT_TRUE(read.ok()) << read.status();
  float values[2];
  ASSERT_EQ(read->size(), sizeof(values));
  std::memcpy(values, read->data(), sizeof(values));
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], 4);
  const auto columns = weights->Read(MakeTensorRange(0, {.begin = 2, .count = 1, .rows = 2, .stride = 3}));
  ASSERT_TRUE(columns.ok()) << columns.status();
  ASSERT_EQ(columns->size(), sizeof(values));
  std::memcpy(values, columns->data(), sizeof(values));
  EXPECT_EQ(values[0], 2);
  EXPECT_EQ(values[1], 5);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const TensorRange& range : {Range(0, 1, 1), Range(0, 5, 2), Range(0, 2, -1), Range(1, 0, 1), Range(-1, 0, 1),
                                   Range(0, kMax, kMax), Range(0, 3, kMax), Range(0, kMax, 1)}) {
    EXPECT_EQ(weights->Read(range).status().code(), absl::StatusCode::kOutOfRange) << range.ShortDebugString();
  }
  const StridedRange bad[] = {
      {.begin = 2, .count = 1, .rows = 2, .stride = 4},  {.begin = 2, .count = 1, .rows = 3, .stride = 2},
      {.begin = 3, .count = 2, .rows = 2, .stride = 1},  {.begin = 2, .count = 0, .rows = 2, .stride = 0},
      {.begin = 2, .count = 1, .rows = 2, .stride = -1}, {.begin = 2, .count = 1, .rows = kMax, .stride = kMax},
      {.begin = 1, .count = 1, .rows = 2, .stride = 3}};
  for (const StridedRange& range : bad) {
    const TensorRange asked = MakeTensorRange(0, range);
    EXPECT_EQ(weights->Find(asked).status().code(), absl::StatusCode::kOutOfRange) << asked.ShortDebugString();
  }
  EXPECT_THAT(std::string(weights->Read(Range(0, 0, 2)).status().message()), HasSubstr("[2, 6)"));
}

TEST(WeightPublisher, FreezesAVersionWhereTheLastOneWasOnceNobodyReadsThat) {
  Ledger ledger;
  const auto memory = std::make_shared<SnapshotMemory>(&ledger);
  const auto freeze = [&] { return Frozen({{0, 0, 6}, {1, 0, 5}}, memory); };
  const auto held = [&] { return ledger.current(MemoryCategory::kCommunication); };
  std::shared_ptr<const PublishedWeights> first = freeze();
  EXPECT_EQ(held(), 44);
  first.reset();
  EXPECT_EQ(held(), 44);
  first = freeze();
  EXPECT_EQ(held(), 44);

  std::shared_ptr<const PublishedWeights> second = freeze();  // while the first is read
  EXPECT_EQ(held(), 88);
  EXPECT_EQ(*first->Read(Range(1, 0, 5)), *second->Read(Range(1, 0, 5)));
  first.reset();
  EXPECT_EQ(held(), 44);
  second.reset();
  EXPECT_EQ(held(), 44);
}

}  // namespace
}  // namespace quartet

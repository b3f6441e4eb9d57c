#include "core/training/batch/packing.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

TokenSequence Sequence(uint64_t index, std::vector<int32_t> ids, std::vector<bool> mask) {
  TokenSequence sequence;
  sequence.set_index(index);
  sequence.mutable_ids()->Assign(ids.begin(), ids.end());
  for (bool action : mask) sequence.add_action_mask(action);
  return sequence;
}

std::vector<int64_t> Values(const at::Tensor& tensor) {
  const int64_t* data = tensor.const_data_ptr<int64_t>();
  return std::vector<int64_t>(data, data + tensor.numel());
}

TEST(Packing, LaysSequencesEndToEndAndReadsEachActionAtTheTokenBeforeIt) {
  const TokenSequence a = Sequence(0, {10, 11, 12}, {false, true, true});
  const TokenSequence b = Sequence(1, {20}, {false});
  const TokenSequence c = Sequence(2, {30, 31, 32, 33}, {false, true, false, true});  // an answer in two turns
  const PackedBatch batch = Pack({&a, &b, &c}, at::kCPU, Sharing::kBlocks);
  EXPECT_EQ(Values(batch.sequences.ids_T), (std::vector<int64_t>{10, 11, 12, 20, 30, 31, 32, 33}));
  EXPECT_EQ(batch.sequences.cu_seqlens, (std::vector<int64_t>{0, 3, 4, 8}));
  EXPECT_TRUE(batch.sequences.shared.empty());
  EXPECT_EQ(Values(batch.targets.rows_U), (std::vector<int64_t>{0, 1, 4, 6}));
  EXPECT_EQ(Values(batch.targets.ids_A), (std::vector<int64_t>{11, 12, 31, 33}));
  EXPECT_FALSE(batch.targets.starts_U.defined());
  EXPECT_EQ(batch.actions, (std::vector<int64_t>{2, 0, 2}));
  EXPECT_EQ(Values(batch.last_rows_S), (std::vector<int64_t>{2, 3, 7}));
  EXPECT_EQ(batch.num_tokens, 8);
  EXPECT_EQ(batch.num_actions, 4);
}

TEST(Packing, LaysWhatSequencesBeginWithOnce) {
  const TokenSequence a = Sequence(0, {10, 11, 12, 13}, {false, false, true, true});
  const TokenSequence b = Sequence(1, {20, 21}, {false, true});
  const TokenSequence c = Sequence(2, {10, 11, 12, 9}, {false, false, true, true});
  const TokenSequence d = Sequence(3, {10, 11}, {false, true});  // all of it is in others
  const PackedBatch batch = Pack({&a, &b, &c, &d}, at::kCPU, Sharing::kBlocks);
  EXPECT_EQ(Values(batch.sequences.ids_T), (std::vector<int64_t>{10, 11, 12, 9, 13, 20, 21}));
  EXPECT_EQ(batch.sequences.cu_seqlens, (std::vector<int64_t>{0, 2, 4, 5, 7}));
  EXPECT_EQ(batch.sequences.shared, (std::vector<int64_t>{0, 2, 3, 0}));
  // In the order in which they were given.
  // Rows 1, 2, 5, 1, 2, 0 of ids 12, 13, 21, 12, 9, 11.
  EXPECT_EQ(Values(batch.targets.rows_U), (std::vector<int64_t>{0, 1, 2, 5}));
  EXPECT_EQ(Values(batch.targets.ids_A), (std::vector<int64_t>{11, 12, 12, 13, 9, 21}));
  EXPECT_EQ(Values(batch.targets.starts_U), (std::vector<int64_t>{0, 1, 3, 5, 6}));
  EXPECT_EQ(Values(batch.targets.places_A), (std::vector<int64_t>{1, 3, 5, 2, 4, 0}));
  EXPECT_EQ(Values(batch.targets.row_places_A), (std::vector<int64_t>{1, 2, 3, 1, 2, 0}));
  EXPECT_EQ(Values(batch.last_rows_S), (std::vector<int64_t>{4, 6, 3, 1}));
  EXPECT_EQ(batch.actions, (std::vector<int64_t>{2, 1, 2, 1}));
  EXPECT_EQ(batch.num_tokens, 12);
  EXPECT_EQ(batch.num_computed, 7);
}

TEST(Packing, PadsTheTokensWithASequenceOfItsOwnThatCountsNowhere) {
  const TokenSequence sequence =
      Sequence(0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17},
               {false, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true});
  const PackedBatch batch = Pack({&sequence}, at::kCPU, Sharing::kBlocks);
  EXPECT_EQ(batch.sequences.cu_seqlens, (std::vector<int64_t>{0, 17, 18}));
  EXPECT_EQ(batch.sequences.ids_T.numel(), 18);
  EXPECT_EQ(batch.actions, (std::vector<int64_t>{16}));
  EXPECT_EQ(batch.num_tokens, 17);
  EXPECT_EQ(batch.num_computed, 17) << "the padding is none of them";
  EXPECT_EQ(batch.num_actions, 16);
}

TEST(Packing, MakesAnEmptyBatchOfNoSequences) {
  const PackedBatch batch = Pack({}, at::kCPU, Sharing::kBlocks);
  EXPECT_EQ(batch.sequences.ids_T.numel(), 0);
  EXPECT_EQ(batch.sequences.cu_seqlens, (std::vector<int64_t>{0}));
  EXPECT_EQ(batch.num_actions, 0);
}

google::protobuf::RepeatedField<uint32_t> Sizes(const std::vector<uint32_t>& sizes) {
  return {sizes.begin(), sizes.end()};
}

TEST(Packing, CutsMicroBatchesAsTheLeaderDecided) {
  const std::vector<int> items = {1, 2, 3};
  const auto micro_batches = CutMicroBatches(items, Sizes({2, 1, 0}));
  ASSERT_TRUE(micro_batches.ok()) << micro_batches.status();
  ASSERT_EQ(micro_batches->size(), 3);
  EXPECT_EQ((*micro_batches)[0], (std::vector<const int*>{&items[0], &items[1]}));
  EXPECT_EQ((*micro_batches)[1], (std::vector<const int*>{&items[2]}));
  EXPECT_TRUE((*micro_batches)[2].empty());
}

TEST(Packing, RefusesMicroBatchesOfMoreOrFewerSequencesThanThereAre) {
  const std::vector<int> items = {1, 2, 3};
  EXPECT_EQ(CutMicroBatches(items, Sizes({2, 2})).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(CutMicroBatches(items, Sizes({2})).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace quartet

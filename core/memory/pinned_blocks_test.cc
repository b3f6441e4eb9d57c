#include "core/memory/pinned_blocks.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace quartet {
namespace {

class PinnedBlocksTest : public ::testing::Test {
 protected:
  static constexpr size_t kPage = 4096;
  // Blocks of these tests, and what the host has locked for them.
  std::map<void*, size_t> locked_;
  size_t total_ = 0, limit_ = size_t{1} << 30;
  PinnedBlocks blocks_{{.take = [this](size_t bytes) -> void* {
                          if (total_ + bytes > limit_) return nullptr;
                          void* memory = std::malloc(bytes);
                          locked_[memory] = bytes;
                          total_ += bytes;
                          return memory;
                        },
                        .give =
                            [this](void* memory, size_t bytes) {
                              EXPECT_EQ(locked_.at(memory), bytes);
                              locked_.erase(memory);
                              total_ -= bytes;
                              std::free(memory);
                            }},
                       /*slack=*/10 * kPage};
};

const PinnedBlocks::Wait kIdle = [] {};

TEST_F(PinnedBlocksTest, TakesWhatIsAskedForInWholePages) {
  void* block = blocks_.Allocate(257 * kPage + 1);
  EXPECT_EQ(total_, 258 * kPage);
  blocks_.Free(block, kIdle);
  blocks_.GiveBack();
  EXPECT_EQ(total_, 0);
}

TEST_F(PinnedBlocksTest, UsesABlockAgainOnceItsLastUserIsDone) {
  bool done = false;
  void* block = blocks_.Allocate(90 * kPage);
  blocks_.Free(block, [&] { done = true; });
  EXPECT_FALSE(done);
  EXPECT_EQ(blocks_.Allocate(81 * kPage), block);
  EXPECT_TRUE(done);
  EXPECT_EQ(total_, 90 * kPage);
  blocks_.Free(block, kIdle);
}

TEST_F(PinnedBlocksTest, WaitsBeforeMemoryGoesBack) {
  bool done = false;
  blocks_.Free(blocks_.Allocate(kPage), [&] {
    done = true;
    EXPECT_EQ(total_, kPage);
  });
  blocks_.GiveBack();
  EXPECT_TRUE(done);
  EXPECT_EQ(total_, 0);
}

TEST_F(PinnedBlocksTest, UsesABlockThatIsLargerByAnEighth) {
  void* block = blocks_.Allocate(450 * kPage);
  blocks_.Free(block, kIdle);
  EXPECT_EQ(blocks_.Allocate(400 * kPage), block);
  blocks_.Free(block, kIdle);
  void* smaller = blocks_.Allocate(399 * kPage);
  EXPECT_EQ(total_, 399 * kPage) << "the other went back";
  blocks_.Free(smaller, kIdle);
}

TEST_F(PinnedBlocksTest, UsesMuchLargerBlocksAsLongAsTheyWasteNoMoreThanTheSlack) {
  void* blocks[] = {blocks_.Allocate(7 * kPage), blocks_.Allocate(7 * kPage)};
  for (void* block : blocks) blocks_.Free(block, kIdle);
  blocks[0] = blocks_.Allocate(kPage);
  EXPECT_EQ(blocks_.stats().wasted, 6 * kPage);
  blocks[1] = blocks_.Allocate(kPage);
  EXPECT_EQ(blocks_.stats().wasted, 6 * kPage) << "12 pages would be more than 10";
  EXPECT_EQ(total_, 8 * kPage);
  for (void* block : blocks) blocks_.Free(block, kIdle);
}

TEST_F(PinnedBlocksTest, HoldsNoMoreThanWasInUseAtOnceBesideWhatItWastes) {
  std::mt19937 random(1);
  std::vector<void*> used;
  for (int i = 0; i < 5000; ++i) {
    if (used.size() < 20 && random() % 5 < 3) {
      used.push_back(blocks_.Allocate(random() % (300 * kPage) + 1));
      ASSERT_NE(used.back(), nullptr);
    } else if (!used.empty()) {
      std::swap(used[random() % used.size()], used.back());
      blocks_.Free(used.back(), kIdle);
      used.pop_back();
    }
    const PinnedBlocks::Stats stats = blocks_.stats();
    ASSERT_EQ(stats.held, total_);
    ASSERT_GE(stats.held, stats.in_use);
    ASSERT_LE(stats.held, stats.peak_in_use + stats.peak_in_use / 8 + 10 * kPage);
  }
  for (void* block : used) blocks_.Free(block, kIdle);
}

TEST_F(PinnedBlocksTest, GivesBackWhatIsFreeBeforeItSaysThatThereIsNone) {
  limit_ = 100 * kPage;
  void* large = blocks_.Allocate(60 * kPage);
  void* small = blocks_.Allocate(20 * kPage);
  blocks_.Free(large, kIdle);
  EXPECT_EQ(blocks_.Allocate(90 * kPage), nullptr) << "20 pages are in use";
  large = blocks_.Allocate(80 * kPage);
  EXPECT_NE(large, nullptr);
  blocks_.Free(small, kIdle);
  blocks_.Free(large, kIdle);
}

}  // namespace
}  // namespace quartet

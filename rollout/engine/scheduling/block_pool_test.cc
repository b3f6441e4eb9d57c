#include "rollout/engine/scheduling/block_pool.h"

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace quartet {
namespace {

using Tokens = std::vector<int32_t>;

TEST(BlockPool, FindsWhatWasPublishedBehindTheSamePrefixOnly) {
  BlockPool pool(4, 2);
  const int32_t a = *pool.Take();
  const int32_t b = *pool.Take();
  const uint64_t first = pool.Publish(a, BlockPool::kEmptyPrefix, Tokens{1, 2});
  const uint64_t second = pool.Publish(b, first, Tokens{1, 2});
  EXPECT_NE(first, second);
  EXPECT_EQ(pool.Find(BlockPool::kEmptyPrefix, Tokens{1, 2})->block, a);
  EXPECT_EQ(pool.Find(first, Tokens{1, 2})->block, b);
  EXPECT_EQ(pool.Find(first, Tokens{1, 2})->prefix, second);
  EXPECT_FALSE(pool.Find(second, Tokens{1, 2}).has_value());
  EXPECT_FALSE(pool.Find(BlockPool::kEmptyPrefix, Tokens{2, 1}).has_value());
}

TEST(BlockPool, ASecondBlockWithTheSameContentGetsTheFirstOnesName) {
  BlockPool pool(4, 2);
  const int32_t a = *pool.Take();
  const int32_t b = *pool.Take();
  const uint64_t name = pool.Publish(a, BlockPool::kEmptyPrefix, Tokens{1, 2});
  EXPECT_EQ(pool.Publish(b, BlockPool::kEmptyPrefix, Tokens{1, 2}), name);
  EXPECT_EQ(pool.published(), 1);
  // The second can be taken before the first, which somebody may want.
  pool.Release(a);
  pool.Release(b);
  EXPECT_EQ(*pool.Take(), b);
}

TEST(BlockPool, TakesTheBlockThatBecameFreeLongestAgoAndForgetsWhatItHeld) {
  BlockPool pool(3, 1);
  std::vector<int32_t> blocks;
  for (int32_t i = 0; i < 3; ++i) {
    blocks.push_back(*pool.Take());
    pool.Publish(blocks[i], BlockPool::kEmptyPrefix, Tokens{i});
  }
  EXPECT_FALSE(pool.Take().has_value());
  for (const int i : {1, 0, 2}) pool.Release(blocks[i]);
  // Using one again makes it the last to go.
  pool.Share(blocks[1]);
  pool.Release(blocks[1]);
  for (const int i : {0, 2, 1}) {
    EXPECT_TRUE(pool.Find(BlockPool::kEmptyPrefix, Tokens{i}).has_value());
    EXPECT_EQ(*pool.Take(), blocks[i]);
    EXPECT_FALSE(pool.Find(BlockPool::kEmptyPrefix, Tokens{i}).has_value());
  }
}

TEST(BlockPool, FindsNothingAfterAFlush) {
  BlockPool pool(3, 1);
  const int32_t used = *pool.Take();
  pool.Publish(used, BlockPool::kEmptyPrefix, Tokens{1});
  const int32_t freed = *pool.Take();
  pool.Publish(freed, BlockPool::kEmptyPrefix, Tokens{2});
  pool.Release(freed);
  pool.Flush();
  EXPECT_EQ(pool.published(), 0);
  EXPECT_FALSE(pool.Find(BlockPool::kEmptyPrefix, Tokens{1}).has_value());
  EXPECT_FALSE(pool.Find(BlockPool::kEmptyPrefix, Tokens{2}).has_value());
  EXPECT_EQ(pool.free(), 2);
}

// Against a model that keeps everything in plain lists.
TEST(BlockPool, LosesNothingAndGivesNothingTwiceInThousandsOfRandomSteps) {
  std::mt19937 random(3);
  constexpr int kBlocks = 20;
  BlockPool pool(kBlocks, 1);
  std::map<int32_t, int> users;                                                    // of blocks in use
  std::map<std::pair<uint64_t, int32_t>, std::pair<int32_t, uint64_t>> published;  // (before, token) to block and name
  std::set<int32_t> holds_something;
  std::vector<uint64_t> names = {BlockPool::kEmptyPrefix};
  for (int step = 0; step < 20000; ++step) {
    const auto any_used = [&] { return std::next(users.begin(), random() % users.size())->first; };
    switch (random() % 6) {
      case 0: {
        const auto block = pool.Take();
        ASSERT_EQ(block.has_value(), users.size() < kBlocks);
        if (!block.has_value()) break;
        ASSERT_EQ(users.count(*block), 0u) << "given twice";
        users[*block] = 1;
        std::erase_if(published, [&](const auto& entry) { return entry.second.first == *block; });
        holds_something.erase(*block);
        break;
      }
      case 1:
      case 2:
        if (!users.empty()) {
          const int32_t block = any_used();
          pool.Release(block);
          if (--users[block] == 0) users.erase(block);
        }
        break;
      case 3:
        if (!users.empty()) {
          const int32_t block = any_used();
          if (holds_something.contains(block)) break;
          const uint64_t before = names[random() % names.size()];
          const auto token = static_cast<int32_t>(random() % 8);
          const uint64_t name = pool.Publish(block, before, Tokens{token});
          const auto [entry, is_new] = published.try_emplace({before, token}, block, name);
          if (is_new) holds_something.insert(block);
          ASSERT_EQ(name, entry->second.second);
          if (names.size() < 6) names.push_back(name);
        }
        break;
      case 4: {
        const uint64_t before = names[random() % names.size()];
        const auto token = static_cast<int32_t>(random() % 8);
        const auto found = pool.Find(before, Tokens{token});
        const auto expected = published.find({before, token});
        ASSERT_EQ(found.has_value(), expected != published.end());
        if (!found.has_value()) break;
        ASSERT_EQ(found->block, expected->second.first);
        pool.Share(found->block);
        ++users[found->block];
        break;
      }
      default:
        if (random() % 200 == 0) {
          pool.Flush();
          published.clear();
          holds_something.clear();
          names = {BlockPool::kEmptyPrefix};
        }
    }
    ASSERT_EQ(pool.free(), kBlocks - static_cast<int64_t>(users.size()));
    ASSERT_EQ(pool.published(), static_cast<int64_t>(published.size()));
  }
}

}  // namespace
}  // namespace quartet

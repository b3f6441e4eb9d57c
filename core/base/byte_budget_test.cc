#include "core/base/byte_budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace quartet {
namespace {

TEST(ByteBudget, BoundsWhatAllHoldTogether) {
  ByteBudget budget(10);
  ByteBudget::Share one(&budget);
  EXPECT_TRUE(one.Grow(6));
  {
    ByteBudget::Share two(&budget);
    EXPECT_FALSE(two.Grow(5));
    EXPECT_EQ(budget.held(), 6);
    EXPECT_TRUE(two.Grow(4));
    EXPECT_FALSE(one.Grow(1));
  }
  EXPECT_TRUE(one.Grow(1));
  ByteBudget::Share moved = std::move(one);
  EXPECT_EQ(moved.bytes(), 7);
  one = ByteBudget::Share(&budget);
  EXPECT_FALSE(one.Grow(4));
  moved.Release();
  moved.Release();
  EXPECT_TRUE(one.Grow(10));
  EXPECT_EQ(budget.held(), 10);
}

TEST(ByteBudget, CountsAlikeFromManyThreads) {
  ByteBudget budget(1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        ByteBudget::Share share(&budget);
        while (!share.Grow(400)) std::this_thread::yield();
        EXPECT_LE(budget.held(), 4 * 400);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.held(), 0);
}

}  // namespace
}  // namespace quartet

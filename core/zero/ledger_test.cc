#include "core/zero/ledger.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace quartet {
namespace {

TEST(Ledger, RemembersTheMostThatWasHeldAtOnce) {
  Ledger ledger;
  ledger.Add(MemoryCategory::kGathered, 70);
  ledger.Add(MemoryCategory::kGathered, 30);
  ledger.Add(MemoryCategory::kGathered, -60);
  EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 40);
  EXPECT_EQ(ledger.peak(MemoryCategory::kGathered), 100);
  EXPECT_EQ(ledger.peak(MemoryCategory::kLogits), 0);
  ledger.ResetPeaks();
  EXPECT_EQ(ledger.peak(MemoryCategory::kGathered), 40);
}

TEST(Ledger, AnEntryLivesWithItsScopeAndSurvivesMoves) {
  Ledger ledger;
  LedgerEntry kept;
  {
    LedgerEntry first(&ledger, MemoryCategory::kLogits, 10);
    LedgerEntry second(std::move(first));
    EXPECT_EQ(ledger.current(MemoryCategory::kLogits), 10);
    LedgerEntry other(&ledger, MemoryCategory::kLogits, 5);
    kept = std::move(other);
  }
  EXPECT_EQ(ledger.current(MemoryCategory::kLogits), 5);
  kept.Reset();
  kept.Reset();
  EXPECT_EQ(ledger.current(MemoryCategory::kLogits), 0);
}

TEST(Ledger, CountsRightFromSeveralThreads) {
  Ledger ledger;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) LedgerEntry entry(&ledger, MemoryCategory::kKvCache, 3);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ledger.current(MemoryCategory::kKvCache), 0);
  EXPECT_GE(ledger.peak(MemoryCategory::kKvCache), 3);
  EXPECT_LE(ledger.peak(MemoryCategory::kKvCache), 12);
}

TEST(Ledger, NamesEveryCategory) {
  EXPECT_EQ(MemoryCategoryName(MemoryCategory::kParameters), "parameters");
  EXPECT_EQ(MemoryCategoryName(MemoryCategory::kCommunication), "communication");
}

}  // namespace
}  // namespace quartet

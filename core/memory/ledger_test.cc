#include "core/memory/ledger.h"

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Refusal(Ledger& ledger, MemoryCategory category, int64_t bytes, MemoryTier tier = MemoryTier::kDevice) {
  try {
    const LedgerEntry entry(&ledger, category, bytes, tier);
  } catch (const MemoryBudgetError& error) {
    return error.what();
  }
  return "";
}

TEST(Ledger, RemembersTheMostThatWasHeldAtOnce) {
  Ledger ledger;
  const LedgerEntry kept(&ledger, MemoryCategory::kGathered, 40);
  LedgerEntry(&ledger, MemoryCategory::kGathered, 60).Reset();
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

TEST(Ledger, KeepsTiersApartAndKnowsTheirTotals) {
  Ledger ledger;
  const LedgerEntry optimizer(&ledger, MemoryCategory::kOptimizer, 100, MemoryTier::kHost);
  const LedgerEntry parameters(&ledger, MemoryCategory::kParameters, 30);
  LedgerEntry(&ledger, MemoryCategory::kActivations, 50).Reset();
  const LedgerEntry logits(&ledger, MemoryCategory::kLogits, 20);
  EXPECT_EQ(ledger.current(MemoryCategory::kOptimizer), 0);
  EXPECT_EQ(ledger.current(MemoryCategory::kOptimizer, MemoryTier::kHost), 100);
  EXPECT_EQ(ledger.total(MemoryTier::kHost), 100);
  EXPECT_EQ(ledger.total(MemoryTier::kDevice), 50);
  EXPECT_EQ(ledger.peak_total(MemoryTier::kDevice), 80) << "activations and logits were not held at once";
  ledger.ResetPeaks();
  EXPECT_EQ(ledger.peak_total(MemoryTier::kDevice), 50);
}

TEST(Ledger, ABudgetHoldsForItsTierAndForAllCategoriesTogether) {
  Ledger ledger;
  ledger.SetBudget(MemoryTier::kDevice, 100);
  const LedgerEntry parameters(&ledger, MemoryCategory::kParameters, 60);
  const LedgerEntry optimizer(&ledger, MemoryCategory::kOptimizer, 1000, MemoryTier::kHost);
  EXPECT_NE(Refusal(ledger, MemoryCategory::kLogits, 41), "");
  EXPECT_EQ(ledger.current(MemoryCategory::kLogits), 0);
  EXPECT_EQ(ledger.peak_total(MemoryTier::kDevice), 60) << "what was refused was never held";
  LedgerEntry logits(&ledger, MemoryCategory::kLogits, 40);
  ledger.SetBudget(MemoryTier::kDevice, 10);
  logits.Reset();  // always possible
  ledger.SetBudget(MemoryTier::kDevice, 0);
  EXPECT_EQ(Refusal(ledger, MemoryCategory::kLogits, 1 << 30), "");
}

TEST(Ledger, ARefusalSaysWhatWasWantedWhatIsHeldAndWhatWouldHelp) {
  Ledger ledger;
  ledger.SetBudget(MemoryTier::kDevice, 4 << 20);
  const LedgerEntry optimizer(&ledger, MemoryCategory::kOptimizer, 3 << 20);
  const LedgerEntry gradients(&ledger, MemoryCategory::kGradients, 1000);
  EXPECT_THAT(
      Refusal(ledger, MemoryCategory::kActivations, 2 << 20),
      AllOf(HasSubstr("2097152 bytes (2.0 MiB) more of activations do not fit into the device memory budget of "
                      "4194304 bytes (4.0 MiB) (device_memory_budget)"),
            HasSubstr("Held now: optimizer 3145728 bytes (3.0 MiB), gradients 1000 bytes, together 3146728"),
            HasSubstr("for optimizer: "), HasSubstr("adam_offload: true; for activations: gradient_checkpointing"),
            Not(HasSubstr("for gradients"))));
  ledger.SetBudget(MemoryTier::kHost, 10);
  EXPECT_THAT(Refusal(ledger, MemoryCategory::kKvCache, 11, MemoryTier::kHost),
              AllOf(HasSubstr("host_memory_budget"), HasSubstr("Held now: together 0 bytes"),
                    HasSubstr("for kv_cache: a smaller kv_cache_bytes"), Not(HasSubstr("optimizer"))));
}

TEST(Ledger, DescribesWhatIsAndWasHeld) {
  Ledger ledger;
  EXPECT_EQ(ledger.Describe(), "The ledger holds nothing.");
  const LedgerEntry logits(&ledger, MemoryCategory::kLogits, 10);
  LedgerEntry(&ledger, MemoryCategory::kLogits, 60).Reset();
  const LedgerEntry optimizer(&ledger, MemoryCategory::kOptimizer, 5, MemoryTier::kHost);
  EXPECT_THAT(ledger.Describe(), AllOf(HasSubstr("On the device: held now: logits 10 bytes, together 10 bytes; at "
                                                 "most: logits 70 bytes"),
                                       HasSubstr("On the host: held now: optimizer 5 bytes")));
}

TEST(Ledger, AnEntryMayOutliveIt) {
  std::optional<Ledger> ledger(std::in_place);
  LedgerEntry entry(&*ledger, MemoryCategory::kLogits, 10);
  ledger.reset();
  entry.Reset();
}

TEST(Ledger, ARefusedEntryHoldsNothing) {
  Ledger ledger;
  ledger.SetBudget(MemoryTier::kHost, 10);
  EXPECT_THROW(LedgerEntry(&ledger, MemoryCategory::kLogits, 11, MemoryTier::kHost), MemoryBudgetError);
  EXPECT_EQ(ledger.total(MemoryTier::kHost), 0);
}

TEST(Ledger, ABudgetHoldsAgainstSeveralThreads) {
  Ledger ledger;
  ledger.SetBudget(MemoryTier::kDevice, 10);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        try {
          const LedgerEntry entry(&ledger, MemoryCategory::kKvCache, 4);
        } catch (const MemoryBudgetError&) {
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ledger.total(MemoryTier::kDevice), 0);
  EXPECT_LE(ledger.peak_total(MemoryTier::kDevice), 10);
}

TEST(Ledger, NamesEveryCategory) {
  EXPECT_EQ(MemoryCategoryName(MemoryCategory::kParameters), "parameters");
  EXPECT_EQ(MemoryCategoryName(MemoryCategory::kCommunication), "communication");
}

}  // namespace
}  // namespace quartet

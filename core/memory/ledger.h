// Bytes by category and tier, now and at peak, of one rank, and the budgets that bound them. LibTorch-free.
//
//   category  what bytes are for
//   tier      where they are: on the device that computes, or in host memory beside it
//   entry     so many bytes of a category, for as long as an object lives
//   budget    a bound on all of a tier; what would pass it is refused before it is allocated
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace quartet {

enum class MemoryCategory {
  kParameters,     // a rank's shard of the weights
  kGradients,      // of that shard, fp32
  kOptimizer,      // moments, and what the optimizer step makes
  kGathered,       // whole groups of parameters, at most two
  kActivations,    // what forward and backward passes make: saved inputs, graphs, temporaries, unreduced gradients
  kLogits,         // what the head and the loss make, forward and backward
  kKvCache,        // of the rollout
  kCommunication,  // reduce buffers, what collectives receive into, published weights
};
inline constexpr int kNumMemoryCategories = 8;

// "parameters", "gradients", ...
std::string_view MemoryCategoryName(MemoryCategory category);

// Where bytes are: on the device that computes (with device "cpu" the process's memory), or in host memory beside it.
enum class MemoryTier { kDevice, kHost };
inline constexpr int kNumMemoryTiers = 2;

// "device", "host".
std::string_view MemoryTierName(MemoryTier tier);

// Memory ran out. what() says which allocation (category and bytes), what the tier holds by category, and which options
// would make the largest holdings smaller.
class OutOfMemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The same of a budget; nothing was allocated.
class MemoryBudgetError : public OutOfMemoryError {
 public:
  using OutOfMemoryError::OutOfMemoryError;
};

// Thread safe. What stands in a ledger (entries, tensors) may outlive it.
class Ledger {
 public:
  Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  ~Ledger();

  // Of all categories of the tier together; 0: none. Holds for what is added from now on.
  void SetBudget(MemoryTier tier, int64_t bytes);
  int64_t budget(MemoryTier tier) const;

  int64_t current(MemoryCategory category, MemoryTier tier = MemoryTier::kDevice) const;
  int64_t peak(MemoryCategory category, MemoryTier tier = MemoryTier::kDevice) const;
  // Of all categories together. The peak of the sum is at most the sum of the categories' peaks.
  int64_t total(MemoryTier tier) const;
  int64_t peak_total(MemoryTier tier) const;
  void ResetPeaks();  // to the current values

  // The message of an OutOfMemoryError about `bytes` of `category` that could not be had for another reason than the
  // budget.
  std::string ExplainFailure(MemoryCategory category, int64_t bytes, MemoryTier tier) const;
  // What both tiers hold now, what they held at most, and what would make it smaller; for failures whose size is not
  // known.
  std::string Describe() const;

 private:
  friend class LedgerEntry;
  class Accounts;
  const std::shared_ptr<Accounts> accounts_;
};

// Holds an amount for the duration of a scope. Move only.
class LedgerEntry {
 public:
  LedgerEntry() = default;
  // Throws MemoryBudgetError, and holds nothing, where more than the tier's budget would be held.
  LedgerEntry(Ledger* ledger, MemoryCategory category, int64_t bytes, MemoryTier tier = MemoryTier::kDevice);
  LedgerEntry(LedgerEntry&& other) noexcept;
  LedgerEntry& operator=(LedgerEntry&& other) noexcept;
  ~LedgerEntry();
  void Reset() noexcept;

 private:
  std::shared_ptr<Ledger::Accounts> accounts_;
  MemoryCategory category_ = MemoryCategory::kParameters;
  MemoryTier tier_ = MemoryTier::kDevice;
  int64_t bytes_ = 0;
};

}  // namespace quartet

// Bytes by category, now and at peak, of one rank. LibTorch-free.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace quartet {

enum class MemoryCategory {
  kParameters,
  kGradients,
  kOptimizer,
  kGathered,
  kActivations,
  kLogits,
  kKvCache,
  kCommunication
};
inline constexpr int kNumMemoryCategories = 8;

// "parameters", "gradients", ...
std::string_view MemoryCategoryName(MemoryCategory category);

// Thread safe.
class Ledger {
 public:
  void Add(MemoryCategory category, int64_t bytes);  // negative: release
  int64_t current(MemoryCategory category) const;
  int64_t peak(MemoryCategory category) const;
  void ResetPeaks();  // to the current values

 private:
  std::array<std::atomic<int64_t>, kNumMemoryCategories> current_{};
  std::array<std::atomic<int64_t>, kNumMemoryCategories> peak_{};
};

// Holds an amount for the duration of a scope. Move only.
class LedgerEntry {
 public:
  LedgerEntry() = default;
  LedgerEntry(Ledger* ledger, MemoryCategory category, int64_t bytes)
      : ledger_(ledger), category_(category), bytes_(bytes) {
    ledger_->Add(category_, bytes_);
  }
  LedgerEntry(LedgerEntry&& other) noexcept { *this = static_cast<LedgerEntry&&>(other); }
  LedgerEntry& operator=(LedgerEntry&& other) noexcept {
    Reset();
    ledger_ = other.ledger_;
    category_ = other.category_;
    bytes_ = other.bytes_;
    other.ledger_ = nullptr;
    return *this;
  }
  ~LedgerEntry() { Reset(); }
  void Reset() {
    if (ledger_ != nullptr) ledger_->Add(category_, -bytes_);
    ledger_ = nullptr;
  }

 private:
  Ledger* ledger_ = nullptr;
  MemoryCategory category_ = MemoryCategory::kParameters;
  int64_t bytes_ = 0;
};

}  // namespace quartet

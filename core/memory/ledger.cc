#include "core/memory/ledger.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quartet {
namespace {

constexpr std::array<const char*, kNumMemoryCategories> kCategoryNames = {
    "parameters", "gradients", "optimizer", "gathered", "activations", "logits", "kv_cache", "communication"};
constexpr std::array<const char*, kNumMemoryTiers> kTierNames = {"device", "host"};

// Which options make a category smaller in a tier.
constexpr std::array<std::array<const char*, kNumMemoryCategories>, kNumMemoryTiers> kRemedies = {{
    {
        "zero_stage: 3 with more ranks, in a trainer or scorer offload_param: true",
        "zero_stage: 2 or 3 with more ranks, adam_offload: true, no_sync: false",
        "zero_stage: 2 or 3 with more ranks, adam_offload: true",
        "dtype: \"bf16\"",
        "gradient_checkpointing: true, activation_offload: true, a smaller micro_train_batch_size, "
        "micro_rollout_batch_size or max_tokens_per_micro_batch, in a rollout a smaller max_num_batched_tokens",
        "a smaller micro_train_batch_size, micro_rollout_batch_size or max_tokens_per_micro_batch, in a rollout a "
        "smaller max_num_seqs",
        "a smaller kv_cache_bytes",
        "zero_stage: 2 or 3 with more ranks",
    },
    {
        "more ranks, offload_param: false",
        "more ranks, adam_offload: false",
        "more ranks, adam_offload: false, sleep_offload: false, ema_decay: 0",
        "more ranks",
        "activation_offload: false, a smaller micro_train_batch_size or max_tokens_per_micro_batch",
        "a smaller micro_train_batch_size or max_tokens_per_micro_batch",
        "a smaller kv_cache_bytes",
        "more ranks",
    },
}};

struct Account {
  int64_t current = 0;
  int64_t peak = 0;

  void Add(int64_t bytes) {
    current += bytes;
    peak = std::max(peak, current);
  }
};

struct Tier {
  std::array<Account, kNumMemoryCategories> categories;
  Account total;
  int64_t budget = 0;
};

std::string Bytes(int64_t bytes) {
  if (bytes < 1 << 20) return absl::StrCat(bytes, " bytes");
  return absl::StrFormat("%d bytes (%.1f MiB)", bytes, static_cast<double>(bytes) / (1 << 20));
}

// Categories that hold something, the largest first.
std::vector<std::pair<int64_t, int>> Largest(const std::array<int64_t, kNumMemoryCategories>& held) {
  std::vector<std::pair<int64_t, int>> order;
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    if (held[i] > 0) order.emplace_back(held[i], i);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return order;
}

std::string List(const std::array<int64_t, kNumMemoryCategories>& held, int64_t total) {
  std::string text;
  for (const auto& [bytes, category] : Largest(held))
    absl::StrAppend(&text, kCategoryNames[category], " ", Bytes(bytes), ", ");
  return absl::StrCat(text, "together ", Bytes(total));
}

// For the two largest of what is held and wanted.
std::string Remedies(int tier, const std::array<int64_t, kNumMemoryCategories>& held) {
  std::string text;
  const auto order = Largest(held);
  for (size_t i = 0; i < std::min<size_t>(2, order.size()); ++i) {
    const int category = order[i].second;
    absl::StrAppend(&text, i == 0 ? "" : "; ", "for ", kCategoryNames[category], ": ", kRemedies[tier][category]);
  }
  return text;
}

// `bytes` of every category.
std::array<int64_t, kNumMemoryCategories> Held(const Tier& tier, int64_t Account::*bytes) {
  std::array<int64_t, kNumMemoryCategories> held;
  for (int i = 0; i < kNumMemoryCategories; ++i) held[i] = tier.categories[i].*bytes;
  return held;
}

// What is held in `tier` while `bytes` more of `category` are wanted, and what would help.
std::string HeldAndRemedies(const std::array<Tier, kNumMemoryTiers>& tiers, int tier, int category, int64_t bytes) {
  std::array<int64_t, kNumMemoryCategories> held = Held(tiers[tier], &Account::current);
  const std::string list = List(held, tiers[tier].total.current);
  held[category] += bytes;
  return absl::StrCat("Held now: ", list, ". What would help: ", Remedies(tier, held), ".");
}

}  // namespace

std::string_view MemoryCategoryName(MemoryCategory category) { return kCategoryNames[static_cast<int>(category)]; }

std::string_view MemoryTierName(MemoryTier tier) { return kTierNames[static_cast<int>(tier)]; }

class Ledger::Accounts {
 public:
  void Add(MemoryCategory category, int64_t bytes, MemoryTier tier) {
    const std::lock_guard lock(mutex_);
    Tier& accounts = tiers_[static_cast<int>(tier)];
    if (bytes > 0 && accounts.budget > 0 && bytes > accounts.budget - accounts.total.current) {
      const int i = static_cast<int>(category);
      const char* name = kTierNames[static_cast<int>(tier)];
      throw MemoryBudgetError(absl::StrCat(Bytes(bytes), " more of ", kCategoryNames[i], " do not fit into the ", name,
                                           " memory budget of ", Bytes(accounts.budget), " (", name,
                                           "_memory_budget). ",
                                           HeldAndRemedies(tiers_, static_cast<int>(tier), i, bytes)));
    }
    accounts.categories[static_cast<int>(category)].Add(bytes);
    accounts.total.Add(bytes);
  }

  template <typename Read>
  auto WithTiers(Read read) {
    const std::lock_guard lock(mutex_);
    return read(tiers_);
  }
  Tier At(MemoryTier tier) {
    return WithTiers([&](const auto& tiers) { return tiers[static_cast<int>(tier)]; });
  }

 private:
  std::mutex mutex_;
  std::array<Tier, kNumMemoryTiers> tiers_;
};

Ledger::Ledger() : accounts_(std::make_shared<Accounts>()) {}
Ledger::~Ledger() = default;

void Ledger::SetBudget(MemoryTier tier, int64_t bytes) {
  accounts_->WithTiers([&](auto& tiers) { tiers[static_cast<int>(tier)].budget = bytes; });
}

int64_t Ledger::budget(MemoryTier tier) const { return accounts_->At(tier).budget; }
int64_t Ledger::current(MemoryCategory category, MemoryTier tier) const {
  return accounts_->At(tier).categories[static_cast<int>(category)].current;
}
int64_t Ledger::peak(MemoryCategory category, MemoryTier tier) const {
  return accounts_->At(tier).categories[static_cast<int>(category)].peak;
}
int64_t Ledger::total(MemoryTier tier) const { return accounts_->At(tier).total.current; }
int64_t Ledger::peak_total(MemoryTier tier) const { return accounts_->At(tier).total.peak; }

void Ledger::ResetPeaks() {
  accounts_->WithTiers([](auto& tiers) {
    for (Tier& tier : tiers) {
      for (Account& account : tier.categories) account.peak = account.current;
      tier.total.peak = tier.total.current;
    }
  });
}

std::string Ledger::ExplainFailure(MemoryCategory category, int64_t bytes, MemoryTier tier) const {
  const int c = static_cast<int>(category), t = static_cast<int>(tier);
  return accounts_->WithTiers([&](auto& tiers) {
    return absl::StrCat("out of ", kTierNames[t], " memory: ", Bytes(bytes), " more of ", kCategoryNames[c],
                        " could not be allocated. ", HeldAndRemedies(tiers, t, c, bytes));
  });
}

std::string Ledger::Describe() const {
  return accounts_->WithTiers([](auto& tiers) {
    std::string text;
    for (int t = 0; t < kNumMemoryTiers; ++t) {
      const Tier& tier = tiers[t];
      if (tier.total.peak == 0) continue;
      absl::StrAppend(&text, text.empty() ? "" : " ", "On the ", kTierNames[t],
                      ": held now: ", List(Held(tier, &Account::current), tier.total.current),
                      "; at most: ", List(Held(tier, &Account::peak), tier.total.peak),
                      ". What would help: ", Remedies(t, Held(tier, &Account::peak)), ".");
    }
    return text.empty() ? "The ledger holds nothing." : text;
  });
}

LedgerEntry::LedgerEntry(Ledger* ledger, MemoryCategory category, int64_t bytes, MemoryTier tier)
    : category_(category), tier_(tier), bytes_(bytes) {
  ledger->accounts_->Add(category, bytes, tier);
  accounts_ = ledger->accounts_;
}

LedgerEntry::LedgerEntry(LedgerEntry&& other) noexcept { *this = std::move(other); }

LedgerEntry& LedgerEntry::operator=(LedgerEntry&& other) noexcept {
  Reset();
  accounts_ = std::exchange(other.accounts_, nullptr);
  category_ = other.category_;
  tier_ = other.tier_;
  bytes_ = other.bytes_;
  return *this;
}

LedgerEntry::~LedgerEntry() { Reset(); }

void LedgerEntry::Reset() noexcept {
  if (accounts_ != nullptr) accounts_->Add(category_, -bytes_, tier_);
  accounts_ = nullptr;
}

}  // namespace quartet

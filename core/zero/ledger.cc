#include "core/zero/ledger.h"

namespace quartet {
namespace {

constexpr std::array<std::string_view, kNumMemoryCategories> kNames = {
    "parameters", "gradients", "optimizer", "gathered", "activations", "logits", "kv_cache", "communication"};

}  // namespace

std::string_view MemoryCategoryName(MemoryCategory category) { return kNames[static_cast<int>(category)]; }

void Ledger::Add(MemoryCategory category, int64_t bytes) {
  const int i = static_cast<int>(category);
  const int64_t now = current_[i].fetch_add(bytes) + bytes;
  int64_t peak = peak_[i].load();
  while (now > peak && !peak_[i].compare_exchange_weak(peak, now)) {
  }
}

int64_t Ledger::current(MemoryCategory category) const { return current_[static_cast<int>(category)].load(); }

int64_t Ledger::peak(MemoryCategory category) const { return peak_[static_cast<int>(category)].load(); }

void Ledger::ResetPeaks() {
  for (int i = 0; i < kNumMemoryCategories; ++i) peak_[i].store(current_[i].load());
}

}  // namespace quartet

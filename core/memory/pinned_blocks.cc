#include "core/memory/pinned_blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/division.h"
#include "core/base/logging.h"

namespace quartet {
namespace {

constexpr size_t kPinnedPage = 4096;

}  // namespace

void* PinnedBlocks::Allocate(size_t bytes) {
  const size_t asked = RoundUp(bytes, kPinnedPage);
  const std::lock_guard lock(mutex_);
  size_t size = asked;
  void* memory = nullptr;
  const auto fits = free_.lower_bound(asked);
  const size_t waste = fits == free_.end() ? 0 : fits->first - asked;
  if (fits != free_.end() && (waste <= asked / 8 || stats_.wasted + waste <= slack_)) {
    fits->second.wait();
    size = fits->first;
    memory = fits->second.memory;
    free_.erase(fits);
  } else {
    const size_t most = std::max(stats_.peak_in_use, stats_.in_use + asked);
    while (!free_.empty() && stats_.held + asked > most) GiveBackLargest();
    memory = pages_.take(asked);
    while (memory == nullptr && !free_.empty()) {
      GiveBackLargest();
      memory = pages_.take(asked);
    }
    if (memory == nullptr) return nullptr;
    stats_.held += asked;
  }
  stats_.wasted += size - asked;
  stats_.in_use += asked;
  stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  used_.emplace(memory, Block{.bytes = size, .asked = asked});
  return memory;
}

void PinnedBlocks::Free(void* block, Wait wait) {
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(block);
  QUARTET_CHECK(used != used_.end()) << "freed twice, or never taken";
  stats_.in_use -= used->second.asked;
  stats_.wasted -= used->second.bytes - used->second.asked;
  free_.emplace(used->second.bytes, Freed{block, std::move(wait)});
  used_.erase(used);
}

void PinnedBlocks::GiveBack() {
  const std::lock_guard lock(mutex_);
  while (!free_.empty()) GiveBackLargest();
}

void PinnedBlocks::GiveBackLargest() {
  const auto largest = std::prev(free_.end());
  largest->second.wait();
  pages_.give(largest->second.memory, largest->first);
  stats_.held -= largest->first;
  free_.erase(largest);
}

PinnedBlocks::Stats PinnedBlocks::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace quartet

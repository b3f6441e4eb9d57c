#include "core/zero/block_cache.h"

#include <sys/mman.h>

#include <cstdint>
#include <iterator>

#include "core/base/huge_pages.h"

namespace quartet {
namespace {

constexpr size_t kPage = 4096;

void* Map(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  AskForHugePages(data, static_cast<int64_t>(bytes));
  return data;
}

}  // namespace

BlockCache::~BlockCache() { Clear(); }

void* BlockCache::Allocate(size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  if (void* data = TakeKept(bytes); data != nullptr) return data;
  void* data = Map(bytes);
  if (data == nullptr) {
    while (!kept_.empty()) GiveBackOldest();
    data = Map(bytes);
  }
  if (data != nullptr) in_use_.emplace(data, bytes);
  return data;
}

bool BlockCache::Free(void* block) {
  if (reinterpret_cast<uintptr_t>(block) % kPage != 0) return false;  // nearly all others' blocks, without the lock
  const std::lock_guard lock(mutex_);
  const auto found = in_use_.find(block);
  if (found == in_use_.end()) return false;
  const size_t bytes = found->second;
  in_use_.erase(found);
  if (bytes > bound_) {
    munmap(block, bytes);
    return true;
  }
  kept_.push_back({block, bytes});
  kept_by_size_.emplace(bytes, std::prev(kept_.end()));
  kept_bytes_ += bytes;
  while (kept_bytes_ > bound_) GiveBackOldest();
  return true;
}

void BlockCache::SetBound(size_t bytes) {
  const std::lock_guard lock(mutex_);
  bound_ = bytes;
  while (kept_bytes_ > bound_) GiveBackOldest();
}

void BlockCache::Clear() {
  const std::lock_guard lock(mutex_);
  while (!kept_.empty()) GiveBackOldest();
}

size_t BlockCache::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

// A kept block of `bytes`, or larger by at most a 32nd: what is larger is held without being seen in the ledger.
void* BlockCache::TakeKept(size_t bytes) {
  const auto found = kept_by_size_.lower_bound(bytes);
  if (found == kept_by_size_.end() || found->first > bytes + bytes / 32) return nullptr;
  const FreeBlock block = *found->second;
  kept_.erase(found->second);
  kept_by_size_.erase(found);
  kept_bytes_ -= block.bytes;
  in_use_.emplace(block.data, block.bytes);
  return block.data;
}

void BlockCache::GiveBackOldest() {
  const auto oldest = kept_.begin();
  for (auto [at, end] = kept_by_size_.equal_range(oldest->bytes); at != end; ++at) {
    if (at->second != oldest) continue;
    kept_by_size_.erase(at);
    break;
  }
  munmap(oldest->data, oldest->bytes);
  kept_bytes_ -= oldest->bytes;
  kept_.erase(oldest);
}

}  // namespace quartet

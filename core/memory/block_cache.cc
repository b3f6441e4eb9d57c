#include "core/memory/block_cache.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/base/division.h"
#include "core/hardware/huge_pages.h"

namespace quartet {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;  // of x86-64

char* FirstHugePage(char* begin) { return begin + (-reinterpret_cast<uintptr_t>(begin)) % kHugePage; }

// Null where the system has no more.
char* MapAnonymous(char* at, size_t bytes, int flags) {
  void* data = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<char*>(data);
}

// Whole huge pages, or null. All mappings begin and end between huge pages, so that each free huge page lies in one.
char* Map(size_t bytes) {
  char* const all = MapAnonymous(nullptr, bytes + kHugePage, 0);
  if (all == nullptr) return nullptr;
  char* const begin = FirstHugePage(all);
  if (begin > all) munmap(all, begin - all);
  munmap(begin + bytes, all + kHugePage - begin);
  AskForHugePages(begin, static_cast<int64_t>(bytes));
  return begin;
}

}  // namespace

BlockCache::~BlockCache() { GiveBack(); }

void* BlockCache::Allocate(size_t bytes) {
  bytes = RoundUp(bytes, kPage);
  const std::lock_guard lock(mutex_);
  void* block = TakeFree(bytes);
  if (block == nullptr) block = TakeNew(bytes);
  if (block == nullptr) return nullptr;
  ASAN_UNPOISON_MEMORY_REGION(block, bytes);
  in_use_.emplace(block, bytes);
  stats_.in_use += bytes;
  peak_ = std::max(peak_, stats_.in_use);
  stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  stats_.peak_held = std::max(stats_.peak_held, stats_.in_use + stats_.free);
  return block;
}

bool BlockCache::Free(void* block) {
  if (reinterpret_cast<uintptr_t>(block) % kPage != 0) return false;  // nearly all others' blocks, without the lock
  const std::lock_guard lock(mutex_);
  const auto found = in_use_.find(block);
  if (found == in_use_.end()) return false;
  const size_t bytes = found->second;
  in_use_.erase(found);
  stats_.in_use -= bytes;
  const auto chunk = AddFree(static_cast<char*>(block), bytes);
  if (calls_ == 0) Offer(chunk);
  return true;
}

void BlockCache::BeginCall() {
  const std::lock_guard lock(mutex_);
  ++calls_;
}

void BlockCache::EndCall() {
  const std::lock_guard lock(mutex_);
  if (--calls_ > 0) return;
  for (auto chunk = free_.begin(); chunk != free_.end();) chunk = Offer(chunk);
}

void BlockCache::GiveBack() {
  const std::lock_guard lock(mutex_);
  UnmapAllFree();
}

BlockCache::Stats BlockCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void* BlockCache::TakeFree(size_t bytes) {
  const auto smallest = free_by_size_.lower_bound({bytes, nullptr});
  if (smallest == free_by_size_.end()) return nullptr;
  const auto [size, begin] = *smallest;
  RemoveFree(free_.find(begin));
  if (size > bytes) AddFree(begin + bytes, size - bytes);
  return begin;
}

// At a new address: free huge pages as far as there are, then new memory. Null, and nothing else but what is free given
// back, where the system has no more.
void* BlockCache::TakeNew(size_t bytes) {
  const size_t whole = RoundUp(bytes, kHugePage);
  if (whole < bytes) return nullptr;
  char* block = Map(whole);
  if (block == nullptr) {
    UnmapAllFree();
    block = Map(whole);
  }
  if (block == nullptr) return nullptr;
  const std::optional<size_t> moved = MoveTo(block, FreeHugePages(whole / kHugePage));
  if (!moved.has_value()) {
    munmap(block, whole);
    return nullptr;
  }
  stats_.moved += *moved;
  stats_.mapped += whole - *moved;
  const size_t peak = std::max(peak_, stats_.in_use + bytes);
  while (!free_.empty() && stats_.in_use + stats_.free + whole > HeldAtMost(peak)) {
    if (!Unmap(free_.find(free_by_size_.rbegin()->second))) break;
  }
  if (whole > bytes) AddFree(block + bytes, whole - bytes);
  return block;
}

// The smallest chunks first: the large ones may have room for whole blocks.
std::vector<char*> BlockCache::FreeHugePages(size_t count) const {
  std::vector<char*> pages;
  for (auto chunk = free_by_size_.lower_bound({kHugePage, nullptr}); chunk != free_by_size_.end(); ++chunk) {
    const auto [size, begin] = *chunk;
    for (char* page = FirstHugePage(begin); page + kHugePage <= begin + size; page += kHugePage) {
      if (pages.size() == count) return pages;
      pages.push_back(page);
    }
  }
  return pages;
}

// Puts free huge pages side by side at `to`, in place of what is mapped there. How many bytes: fewer where the system
// has no place for more mappings; nothing where that leaves a hole.
std::optional<size_t> BlockCache::MoveTo(char* to, const std::vector<char*>& huge_pages) {
  size_t moved = 0;
  for (char* page : huge_pages) {
    if (mremap(page, kHugePage, kHugePage, MREMAP_MAYMOVE | MREMAP_FIXED, to + moved) == MAP_FAILED) {
      if (MapAnonymous(to + moved, kHugePage, MAP_FIXED) == nullptr) return std::nullopt;
      break;
    }
    moved += kHugePage;
    ASAN_UNPOISON_MEMORY_REGION(page, kHugePage);  // the address is nobody's now
    const auto chunk = std::prev(free_.upper_bound(page));
    const auto [begin, size] = *chunk;
    RemoveFree(chunk);
    if (page > begin) AddFree(begin, page - begin);
    if (page + kHugePage < begin + size) AddFree(page + kHugePage, begin + size - (page + kHugePage));
  }
  return moved;
}

// The chunk that it is part of now.
BlockCache::Chunks::iterator BlockCache::AddFree(char* begin, size_t bytes) {
  ASAN_POISON_MEMORY_REGION(begin, bytes);
  stats_.free += bytes;
  const auto join = [&](Chunks::iterator neighbour) {
    bytes += neighbour->second;
    free_by_size_.erase({neighbour->second, neighbour->first});
    return free_.erase(neighbour);
  };
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && begin + bytes == next->first) next = join(next);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      join(before);
    }
  }
  free_by_size_.emplace(bytes, begin);
  return free_.emplace(begin, bytes).first;
}

void BlockCache::RemoveFree(Chunks::iterator chunk) {
  stats_.free -= chunk->second;
  free_by_size_.erase({chunk->second, chunk->first});
  free_.erase(chunk);
}

// Whole huge pages alone: a part of one would be cut out of it, page by page. The chunk after it.
BlockCache::Chunks::iterator BlockCache::Offer(Chunks::iterator chunk) {
  const auto next = std::next(chunk);
  char *const begin = FirstHugePage(chunk->first), *const end = chunk->first + chunk->second;
  if (begin + kHugePage > end) return next;
  const size_t bytes = (end - begin) / kHugePage * kHugePage;
  if (madvise(begin, bytes, MADV_FREE) != 0) Unmap(chunk);  // a system that knows no such offer
  return next;
}

// False, and without effect, where the system has no place for more mappings: what is between two others takes one
// more.
bool BlockCache::Unmap(Chunks::iterator chunk) {
  if (munmap(chunk->first, chunk->second) != 0) return false;
  ASAN_UNPOISON_MEMORY_REGION(chunk->first, chunk->second);  // the address is nobody's now
  RemoveFree(chunk);
  return true;
}

void BlockCache::UnmapAllFree() {
  for (auto chunk = free_.begin(); chunk != free_.end();) {
    const auto next = std::next(chunk);
    Unmap(chunk);
    chunk = next;
  }
  peak_ = stats_.in_use;
}

BlockCache& HostBlocks() {
  static auto* cache = new BlockCache;  // tensors may be freed while the process ends
  return *cache;
}

}  // namespace quartet
